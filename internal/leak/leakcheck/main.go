// Command leakcheck tells what tests left on the host: "leakcheck save FILE"
// before them, "leakcheck compare FILE" afterwards, which lists what is new
// and ends with status 1 when there is anything.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/glovebox-dev/glovebox/internal/leak"
)

// patience is for what ends by itself: bound sandboxes whose creator was
// killed a moment ago.
const patience = 15 * time.Second

func main() {
	left, err := run(os.Args[1:])
	for _, what := range left {
		fmt.Fprintln(os.Stderr, "left behind:", what)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "leakcheck:", err)
	}
	if err != nil || len(left) > 0 {
		os.Exit(1)
	}
}

func run(args []string) ([]string, error) {
	if len(args) != 2 {
		return nil, errors.New("usage: leakcheck save|compare FILE")
	}
	switch args[0] {
	case "save":
		s, err := leak.Host()
		if err != nil {
			return nil, err
		}
		data, err := json.MarshalIndent(s, "", " ")
		if err != nil {
			return nil, err
		}
		return nil, os.WriteFile(args[1], data, 0o600)
	case "compare":
		data, err := os.ReadFile(args[1])
		if err != nil {
			return nil, err
		}
		var before leak.Snapshot
		if err := json.Unmarshal(data, &before); err != nil {
			return nil, err
		}
		return leak.Since(before, patience)
	default:
		return nil, fmt.Errorf("unknown command %q, known are save, compare", args[0])
	}
}
