// go-redis as its users use it: goredis HOST PORT
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	. "plimsoll/clients/program"
)

var (
	ctx    = context.Background()
	client = redis.NewClient(&redis.Options{Addr: Address})
	large  = Large()
)

func ok(status *redis.StatusCmd) {
	Equal("OK", status.Val(), status.Err())
}

func integer(wanted int64, reply *redis.IntCmd) {
	Equal(wanted, reply.Val(), reply.Err())
}

func text(wanted string, reply *redis.StringCmd) {
	Equal(wanted, reply.Val(), reply.Err())
}

func connects() {
	Equal("PONG", client.Ping(ctx).Val(), nil)
	hello, err := client.Do(ctx, "HELLO").Result()
	Equal(int64(3), hello.(map[any]any)["proto"].(int64), err)
	ok(client.FlushAll(ctx))
}

func setsAndGets() {
	ok(client.Set(ctx, "a", "1", 0))
	text("1", client.Get(ctx, "a"))
	True(client.Get(ctx, "absent").Err() == redis.Nil)
	given, err := client.SetNX(ctx, "a", "2", 0).Result()
	Equal(false, given, err)
	before, err := client.SetArgs(ctx, "a", "2", redis.SetArgs{Mode: "XX", Get: true}).Result()
	Equal("1", before, err)
	ok(client.MSet(ctx, "b", "3", "späße", "ünïcode ✓"))
	many, err := client.MGet(ctx, "a", "absent", "b", "späße").Result()
	Equal([]any{"2", nil, "3", "ünïcode ✓"}, many, err)
	integer(2, client.Exists(ctx, "a", "b", "absent"))
	integer(3, client.Append(ctx, "a", "34"))
	text("34", client.GetRange(ctx, "a", 1, -1))
}

func expires() {
	ok(client.Set(ctx, "e", "1", 100*time.Second))
	left := client.TTL(ctx, "e").Val()
	True(left > 90*time.Second && left <= 100*time.Second, left)
	True(client.Persist(ctx, "e").Val())
	Equal(-1, client.TTL(ctx, "e").Val(), nil)
	True(client.Expire(ctx, "e", 50*time.Second).Val())
	True(client.PExpire(ctx, "e", 20*time.Millisecond).Val())
	Until("expiry", func() bool { return client.Get(ctx, "e").Err() == redis.Nil })
	Equal(-2, client.TTL(ctx, "e").Val(), nil)
}

func counts() {
	integer(1, client.Incr(ctx, "n"))
	integer(42, client.IncrBy(ctx, "n", 41))
	integer(41, client.Decr(ctx, "n"))
	sum, err := client.IncrByFloat(ctx, "f", 1.5).Result()
	Equal(1.5, sum, err)
}

func scansAndDeletes() {
	wanted := map[string]bool{}
	for number := range 1000 {
		key := fmt.Sprintf("scan:%d", number)
		wanted[key] = true
		ok(client.Set(ctx, key, "", 0))
	}
	seen, keys := map[string]bool{}, []string{}
	iterator := client.Scan(ctx, 0, "scan:*", 100).Iterator()
	for iterator.Next(ctx) {
		if !seen[iterator.Val()] {
			keys = append(keys, iterator.Val())
		}
		seen[iterator.Val()] = true
	}
	Equal(wanted, seen, iterator.Err())
	integer(1000, client.Del(ctx, keys...))
	integer(1, client.Unlink(ctx, "a", "absent"))
	True(client.Get(ctx, "a").Err() == redis.Nil)
}

func largeValues() {
	ok(client.Set(ctx, "large", large, 0))
	given, err := client.Get(ctx, "large").Bytes()
	True(err == nil && bytes.Equal(large, given))
	integer(int64(len(large)), client.StrLen(ctx, "large"))
}

func pipelines() {
	replies, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for number := range 1000 {
			pipe.Set(ctx, fmt.Sprintf("p:%d", number), number, 0)
		}
		return nil
	})
	Equal(1000, len(replies), err)
	replies, err = client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for number := range 1000 {
			pipe.Get(ctx, fmt.Sprintf("p:%d", number))
		}
		return nil
	})
	Equal(1000, len(replies), err)
	for number, reply := range replies {
		text(fmt.Sprint(number), reply.(*redis.StringCmd))
	}
}

func transactions() {
	replies, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "t", "1", 0)
		pipe.Incr(ctx, "t")
		return nil
	})
	Equal(2, len(replies), err)
	integer(2, replies[1].(*redis.IntCmd))
	// Another writer between WATCH and EXEC in the first round: nothing of the transaction is done.
	round := 0
	add := func(tx *redis.Tx) error {
		before, err := tx.Get(ctx, "t").Int()
		if err != nil {
			return err
		}
		if round == 0 {
			ok(client.Set(ctx, "t", "100", 0))
		}
		round++
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, "t", before+1, 0)
			return nil
		})
		return err
	}
	True(errors.Is(client.Watch(ctx, add, "t"), redis.TxFailedErr))
	text("100", client.Get(ctx, "t"))
	Equal(nil, client.Watch(ctx, add, "t"), nil)
	text("101", client.Get(ctx, "t"))
	// A command that cannot be queued: EXEC does nothing.
	_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "t", "lost", 0)
		pipe.Do(ctx, "GET")
		return nil
	})
	True(err != nil)
	text("101", client.Get(ctx, "t"))
}

func messages() {
	listener := client.PSubscribe(ctx, "n*")
	_, err := listener.Receive(ctx)
	Equal(nil, listener.Subscribe(ctx, "news"), err)
	_, err = listener.Receive(ctx)
	Equal(nil, err, nil)
	integer(2, client.Publish(ctx, "news", "first"))
	heard := map[string]string{}
	for range 2 {
		message := <-listener.Channel()
		heard[message.Pattern+" "+message.Channel] = message.Payload
	}
	Equal(map[string]string{" news": "first", "n* news": "first"}, heard, nil)
	Equal(nil, listener.Close(), nil)
	Until("its end", func() bool { return client.Publish(ctx, "news", "second").Val() == 0 })
}

func refusals() {
	Refused(client.Do(ctx, "GET").Err(), "wrong number of arguments for 'get' command")
	Refused(client.Do(ctx, "FLY", "away").Err(), "unknown command")
	Refused(client.Do(ctx, "SET", "a", "1", "EX", "soon").Err(), "not an integer")
	ok(client.Set(ctx, "text", "abc", 0))
	Refused(client.Incr(ctx, "text").Err(), "not an integer")
	text("abc", client.Get(ctx, "text"))
}

func outlivesARestart() {
	before := client.DBSize(ctx).Val()
	Restart()
	// It connects again by itself: connections of its pool that are dead are tried no further.
	text("41", client.Get(ctx, "n"))
	integer(before, client.DBSize(ctx))
	given, err := client.Get(ctx, "large").Bytes()
	True(err == nil && bytes.Equal(large, given))
	ok(client.Set(ctx, "n", "after", 0))
	Equal(nil, client.Close(), nil)
}

func main() {
	for _, step := range []func(){
		connects, setsAndGets, expires, counts, scansAndDeletes, largeValues, pipelines, transactions,
		messages, refusals, outlivesARestart,
	} {
		step()
	}
	Done("github.com/redis/go-redis/v9")
}
