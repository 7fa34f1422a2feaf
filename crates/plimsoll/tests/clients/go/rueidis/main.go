// rueidis as its users use it, without its cache, which needs CLIENT TRACKING: rueidis HOST PORT
package main

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

	. "plimsoll/clients/program"
)

var (
	ctx     = context.Background()
	options = rueidis.ClientOption{InitAddress: []string{Address}, DisableCache: true}
	client  rueidis.Client
	large   = Large()
)

func do(command rueidis.Completed) rueidis.RedisResult {
	return client.Do(ctx, command)
}

func ok(command rueidis.Completed) {
	text("OK", command)
}

func text(wanted string, command rueidis.Completed) {
	given, err := do(command).ToString()
	Equal(wanted, given, err)
}

func integer(wanted int64, command rueidis.Completed) {
	given, err := do(command).AsInt64()
	Equal(wanted, given, err)
}

func none(command rueidis.Completed) {
	True(rueidis.IsRedisNil(do(command).Error()))
}

func arbitrary(words ...string) rueidis.Completed {
	return client.B().Arbitrary(words...).Build()
}

func connects() {
	var err error
	client, err = rueidis.NewClient(options)
	Equal(nil, err, nil)
	hello, err := do(arbitrary("HELLO")).AsMap()
	proto := hello["proto"]
	given, _ := proto.ToInt64()
	Equal(3, given, err)
	ok(client.B().Flushall().Build())
}

func setsAndGets() {
	ok(client.B().Set().Key("a").Value("1").Build())
	text("1", client.B().Get().Key("a").Build())
	none(client.B().Get().Key("absent").Build())
	none(client.B().Set().Key("a").Value("2").Nx().Build())
	text("1", client.B().Set().Key("a").Value("2").Xx().Get().Build())
	ok(client.B().Mset().KeyValue().KeyValue("b", "3").KeyValue("späße", "ünïcode ✓").Build())
	many, err := do(client.B().Mget().Key("a", "absent", "b", "späße").Build()).AsStrSlice()
	Equal([]string{"2", "", "3", "ünïcode ✓"}, many, err)
	helped, err := rueidis.MGet(client, ctx, []string{"a", "absent"})
	absent := helped["absent"]
	True(err == nil && len(helped) == 2 && absent.IsNil())
	integer(2, client.B().Exists().Key("a", "b", "absent").Build())
	integer(3, client.B().Append().Key("a").Value("34").Build())
	text("34", client.B().Getrange().Key("a").Start(1).End(-1).Build())
}

func expires() {
	ok(client.B().Set().Key("e").Value("1").ExSeconds(100).Build())
	left, err := do(client.B().Ttl().Key("e").Build()).AsInt64()
	True(err == nil && left > 90 && left <= 100, left)
	integer(1, client.B().Persist().Key("e").Build())
	integer(-1, client.B().Ttl().Key("e").Build())
	integer(1, client.B().Expire().Key("e").Seconds(50).Build())
	integer(1, client.B().Pexpire().Key("e").Milliseconds(20).Build())
	get := client.B().Get().Key("e").Build().Pin()
	Until("expiry", func() bool { return rueidis.IsRedisNil(do(get).Error()) })
	integer(-2, client.B().Ttl().Key("e").Build())
}

func counts() {
	integer(1, client.B().Incr().Key("n").Build())
	integer(42, client.B().Incrby().Key("n").Increment(41).Build())
	integer(41, client.B().Decr().Key("n").Build())
	sum, err := do(client.B().Incrbyfloat().Key("f").Increment(1.5).Build()).AsFloat64()
	Equal(1.5, sum, err)
	// Concurrent callers share a connection: rueidis makes pipelines of them.
	var callers sync.WaitGroup
	for range 1000 {
		callers.Go(func() { True(do(client.B().Incr().Key("many").Build()).Error() == nil) })
	}
	callers.Wait()
	text("1000", client.B().Get().Key("many").Build())
}

func scansAndDeletes() {
	wanted := map[string]bool{}
	for number := range 1000 {
		key := fmt.Sprintf("scan:%d", number)
		wanted[key] = true
		ok(client.B().Set().Key(key).Value("").Build())
	}
	seen, keys, cursor := map[string]bool{}, []string{}, uint64(0)
	for {
		page, err := do(client.B().Scan().Cursor(cursor).Match("scan:*").Count(100).Build()).AsScanEntry()
		Equal(nil, err, nil)
		for _, key := range page.Elements {
			if !seen[key] {
				keys = append(keys, key)
			}
			seen[key] = true
		}
		if cursor = page.Cursor; cursor == 0 {
			break
		}
	}
	Equal(wanted, seen, nil)
	integer(1000, client.B().Del().Key(keys...).Build())
	integer(1, client.B().Unlink().Key("a", "absent").Build())
	none(client.B().Get().Key("a").Build())
}

func largeValues() {
	ok(client.B().Set().Key("large").Value(rueidis.BinaryString(large)).Build())
	given, err := do(client.B().Get().Key("large").Build()).AsBytes()
	True(err == nil && bytes.Equal(large, given))
	integer(int64(len(large)), client.B().Strlen().Key("large").Build())
}

func pipelines() {
	var stores, reads rueidis.Commands
	for number := range 1000 {
		key, value := fmt.Sprintf("p:%d", number), fmt.Sprint(number)
		stores = append(stores, client.B().Set().Key(key).Value(value).Build())
		reads = append(reads, client.B().Get().Key(key).Build())
	}
	for _, reply := range client.DoMulti(ctx, stores...) {
		given, err := reply.ToString()
		Equal("OK", given, err)
	}
	for number, reply := range client.DoMulti(ctx, reads...) {
		given, err := reply.ToString()
		Equal(fmt.Sprint(number), given, err)
	}
}

func transactions() {
	dedicated, release := client.Dedicate()
	defer release()
	one := func(value string) rueidis.Commands {
		set := client.B().Set().Key("t").Value(value).Build()
		return rueidis.Commands{client.B().Multi().Build(), set, client.B().Exec().Build()}
	}
	last := func(replies []rueidis.RedisResult) rueidis.RedisResult { return replies[len(replies)-1] }
	given, err := last(dedicated.DoMulti(ctx, one("1")...)).AsStrSlice()
	Equal([]string{"OK"}, given, err)
	// Another writer between WATCH and EXEC: nothing of the transaction is done.
	watch := client.B().Watch().Key("t").Build().Pin()
	Equal(nil, dedicated.Do(ctx, watch).Error(), nil)
	ok(client.B().Set().Key("t").Value("changed").Build())
	True(rueidis.IsRedisNil(last(dedicated.DoMulti(ctx, one("lost")...)).Error()))
	text("changed", client.B().Get().Key("t").Build())
	Equal(nil, dedicated.Do(ctx, watch).Error(), nil)
	given, err = last(dedicated.DoMulti(ctx, one("won")...)).AsStrSlice()
	Equal([]string{"OK"}, given, err)
	text("won", client.B().Get().Key("t").Build())
	// A command that cannot be queued: EXEC does nothing.
	broken := one("lost")
	broken[1] = arbitrary("GET")
	Refused(last(dedicated.DoMulti(ctx, broken...)).Error(), "EXECABORT")
}

func messages() {
	heard, ended := make(chan rueidis.PubSubMessage, 2), make(chan error, 1)
	listening, stop := context.WithCancel(ctx)
	go func() {
		ended <- client.Receive(listening, client.B().Psubscribe().Pattern("n*").Build(),
			func(message rueidis.PubSubMessage) { heard <- message })
	}()
	publish := client.B().Publish().Channel("news").Message("first").Build().Pin()
	Until("a listener", func() bool {
		listeners, err := do(publish).AsInt64()
		return err == nil && listeners == 1
	})
	message := <-heard
	Equal([]string{"n*", "news", "first"}, []string{message.Pattern, message.Channel, message.Message}, nil)
	stop()
	Equal(context.Canceled, <-ended, nil)
}

func refusals() {
	Refused(do(arbitrary("GET")).Error(), "wrong number of arguments for 'get' command")
	Refused(do(arbitrary("FLY", "away")).Error(), "unknown command")
	Refused(do(arbitrary("SET", "a", "1", "EX", "soon")).Error(), "not an integer")
	ok(client.B().Set().Key("text").Value("abc").Build())
	Refused(do(client.B().Incr().Key("text").Build()).Error(), "not an integer")
	text("abc", client.B().Get().Key("text").Build())
}

func outlivesARestart() {
	before, err := do(client.B().Dbsize().Build()).AsInt64()
	Equal(nil, err, nil)
	Restart()
	// It connects again by itself, and repeats what only reads.
	text("41", client.B().Get().Key("n").Build())
	integer(before, client.B().Dbsize().Build())
	given, err := do(client.B().Get().Key("large").Build()).AsBytes()
	True(err == nil && bytes.Equal(large, given))
	ok(client.B().Set().Key("n").Value("after").Build())
	client.Close()
}

// With its cache on, a server without CLIENT TRACKING is refused at once and by name: no user finds out
// later that what is cached is stale.
func saysThatTheCacheIsMissing() {
	cached, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{Address}})
	if err == nil {
		// The server has it: then it must work.
		defer cached.Close()
		get := func() string {
			given, err := cached.DoCache(ctx, cached.B().Get().Key("text").Cache(), time.Minute).ToString()
			Equal(nil, err, nil)
			return given
		}
		Equal("abc", get(), nil)
		Equal(nil, cached.Do(ctx, cached.B().Set().Key("text").Value("new").Build()).Error(), nil)
		Until("invalidation", func() bool { return get() == "new" })
		return
	}
	Refused(err, "DisableCache")
}

func main() {
	for _, step := range []func(){
		connects, setsAndGets, expires, counts, scansAndDeletes, largeValues, pipelines, transactions,
		messages, refusals, saysThatTheCacheIsMissing, outlivesARestart,
	} {
		step()
	}
	Done("github.com/redis/rueidis")
}
