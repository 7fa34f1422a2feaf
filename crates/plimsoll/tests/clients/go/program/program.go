// Package program is what the programs for Go share: the steps in order, expectations, and asking for a
// restart of the server.
//
// The test that starts a program kills the server when it reads "restart", starts it again at the same
// address, and answers "restarted". Anything that is not as expected ends the program with an error.
package program

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// Address is that of the server: HOST:PORT.
var Address = func() string {
	if len(os.Args) < 3 {
		fail("usage: PROGRAM HOST PORT")
	}
	return os.Args[1] + ":" + os.Args[2]
}()

var answers = bufio.NewReader(os.Stdin)

func fail(words string) {
	fmt.Fprintln(os.Stderr, words)
	os.Exit(1)
}

// Restart returns when the server has been killed and started again.
func Restart() {
	fmt.Println("restart")
	answer, err := answers.ReadString('\n')
	if err != nil || answer != "restarted\n" {
		fail(fmt.Sprintf("not restarted: %q %v", answer, err))
	}
}

// Equal expects what is given to be what is wanted, and no error.
func Equal[T any](wanted T, given T, err error) {
	if err != nil || !reflect.DeepEqual(wanted, given) {
		_, file, line, _ := runtime.Caller(1)
		fail(fmt.Sprintf("%s:%d: wanted %.200q, given %.200q, error %v",
			file, line, fmt.Sprint(wanted), fmt.Sprint(given), err))
	}
}

// True expects something.
func True(is bool, words ...any) {
	if !is {
		_, file, line, _ := runtime.Caller(1)
		fail(fmt.Sprintf("%s:%d: not so: %v", file, line, words))
	}
}

// Refused expects an error with these words in it.
func Refused(err error, words string) {
	if err == nil || !strings.Contains(err.Error(), words) {
		_, file, line, _ := runtime.Caller(1)
		fail(fmt.Sprintf("%s:%d: wanted %q, given %v", file, line, words, err))
	}
}

// Until waits until done says so.
func Until(what string, done func() bool) {
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			fail("it does not come: " + what)
		}
	}
}

// Done says the client and its version.
func Done(module string) {
	build, _ := debug.ReadBuildInfo()
	for _, used := range build.Deps {
		if used.Path == module {
			fmt.Printf("%s %s: ok\n", module, used.Version)
			return
		}
	}
	fail(module + " is not in this program")
}

// Large are two MiB in which every byte and no period of a record's size occurs.
func Large() []byte {
	large := make([]byte, 2<<20)
	for at := range large {
		large[at] = byte(at*31 + (at>>8)*7 + (at >> 16))
	}
	return large
}
