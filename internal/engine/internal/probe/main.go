//go:build linux

// Probe is what tests of the engine run in containers.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("a word is needed")
	}
	switch args[0] {
	case "sleep": // until a signal, or the end of the input when it is open
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		<-c
		return nil
	case "echo":
		fmt.Fprint(os.Stderr, "ready\n")
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	case "exit":
		n, err := strconv.Atoi(args[1])
		if err == nil {
			os.Exit(n)
		}
		return err
	case "hog":
		var all [][]byte
		for {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = byte(i)
			}
			all = append(all, b)
			_ = all
		}
	case "facts":
		return facts()
	case "calls":
		return json.NewEncoder(os.Stdout).Encode(calls())
	}
	return fmt.Errorf("no such thing as %q", args[0])
}

// facts prints what a process inside sees of its confinement.
func facts() error {
	out := map[string]string{}
	for _, f := range []string{"/proc/self/status", "/proc/self/mountinfo", "/proc/self/cgroup", "/proc/self/limits"} {
		data, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		out[f] = string(data)
	}
	write := func(path string) string {
		err := os.WriteFile(path, []byte("x"), 0o600)
		if err != nil {
			return err.Error()
		}
		return "ok"
	}
	out["write /"] = write("/canary")
	out["write /scratch"] = write("/scratch/canary")
	out["write /proc/sys"] = write("/proc/sys/kernel/domainname")
	host, err := os.Hostname()
	out["hostname"] = host
	out["env"] = strings.Join(os.Environ(), "\n")
	kcore, _ := os.ReadFile("/proc/kcore")
	out["kcore"] = strconv.Itoa(len(kcore))
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}
