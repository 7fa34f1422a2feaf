// Command porcupine judges histories with the porcupine linearizability checker.
//
// Place: crates/sim/tests/porcupine.rs runs it to compare its verdicts with those of plimsoll-sim's own
// checker. It reads one history of one key per line, as JSON, from standard input, and prints one verdict
// per line: ok, illegal, or unknown (out of time).
//
// Invariants: its model is written independently of the Rust one. Operations of unknown outcome return
// after all others, and any output fits them.
//
// Must never: reorder lines, or print anything else on standard output.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// timeLimit bounds the search in one history.
const timeLimit = 60 * time.Second

// lineMax bounds a line, in bytes.
const lineMax = 16 << 20

type operation struct {
	Client    int    `json:"client"`
	Call      int64  `json:"call"`
	Return    *int64 `json:"return"` // null: outcome unknown
	Kind      string `json:"kind"`   // set, get, exists, delete, clear
	Value     uint64 `json:"value"`
	Condition string `json:"condition"` // "", NX, XX
	Old       bool   `json:"old"`       // set answers with the old value
	Flag      bool   `json:"flag"`      // the answer, if it is a flag
	Read      uint64 `json:"read"`      // the answer, if it is a value; 0 is absent
}

// step runs one operation on a key that holds value state (0 is absent).
func step(state uint64, op operation) (bool, uint64) {
	flag, read, next := false, state, state
	switch op.Kind {
	case "get":
	case "exists":
		flag = state != 0
	case "delete":
		flag, next = state != 0, 0
	case "clear":
		next = 0
	case "set":
		flag = op.Condition == "" || (op.Condition == "NX") == (state == 0)
		if flag {
			next = op.Value
		}
	default:
		panic("unknown kind " + op.Kind)
	}
	answersValue := op.Kind == "get" || (op.Kind == "set" && op.Old)
	switch {
	case op.Return == nil || op.Kind == "clear":
		return true, next
	case answersValue:
		return read == op.Read, next
	default:
		return flag == op.Flag, next
	}
}

var model = porcupine.Model{
	Init: func() interface{} { return uint64(0) },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		ok, next := step(state.(uint64), input.(operation))
		return ok, next
	},
}

// history turns operations into porcupine's, with unknown outcomes last of all.
func history(operations []operation) []porcupine.Operation {
	end := int64(0)
	for _, op := range operations {
		if op.Call > end {
			end = op.Call
		}
		if op.Return != nil && *op.Return > end {
			end = *op.Return
		}
	}
	all := make([]porcupine.Operation, 0, len(operations))
	for _, op := range operations {
		returned := end + 1
		if op.Return != nil {
			returned = *op.Return
		}
		all = append(all, porcupine.Operation{
			ClientId: op.Client, Input: op, Call: op.Call, Output: nil, Return: returned,
		})
	}
	return all
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 0, 1<<16), lineMax)
	for lines.Scan() {
		var operations []operation
		if err := json.Unmarshal(lines.Bytes(), &operations); err != nil {
			fmt.Fprintln(os.Stderr, "not a history:", err)
			os.Exit(2)
		}
		verdict := porcupine.CheckOperationsTimeout(model, history(operations), timeLimit)
		switch verdict {
		case porcupine.Ok:
			fmt.Println("ok")
		case porcupine.Illegal:
			fmt.Println("illegal")
		default:
			fmt.Println("unknown")
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot read histories:", err)
		os.Exit(2)
	}
}
