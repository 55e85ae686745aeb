//go:build linux

// Command guest is the first process of the sandboxes that the tests of runsc
// start: it answers commands, a line each.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/sentry"
)

func main() {
	in := bufio.NewScanner(os.Stdin)
	count, stay := 0, false
	for in.Scan() {
		verb, arg, _ := strings.Cut(in.Text(), " ")
		if verb == "count" {
			count++
			arg = strconv.Itoa(count)
		}
		stay = stay || verb == "stay"
		if _, err := fmt.Fprintln(os.Stdout, answer(verb, arg)); err != nil {
			os.Exit(1)
		}
	}
	if stay {
		<-time.After(time.Hour)
	}
}

func answer(verb, arg string) string {
	switch verb {
	case "gvisor":
		ok, why := sentry.Observe().GVisor()
		return fmt.Sprint(ok, " ", why)
	case "seen":
		var si unix.Sysinfo_t
		err := unix.Sysinfo(&si)
		host, _ := os.Hostname()
		return fmt.Sprintf("uid=%d env=%q host=%s mem=%d args=%q %v", os.Getuid(), os.Environ(), host, si.Totalram*uint64(si.Unit), os.Args, err)
	case "caps":
		var data [2]unix.CapUserData
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		err := unix.Capget(&hdr, &data[0])
		return fmt.Sprintf("%x %x %v", data[0].Effective, data[0].Inheritable, err)
	case "fill":
		f, err := os.Create(filepath.Join(arg, "big"))
		if err != nil {
			return err.Error()
		}
		n, err := io.Copy(f, io.LimitReader(zeros{}, 64<<20))
		return fmt.Sprintf("%d %v", n, err)
	case "write":
		return fmt.Sprint(os.WriteFile(arg, nil, 0o600))
	case "hog":
		var held [][]byte
		for {
			b := make([]byte, 8<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			held = append(held, b)
			if len(held) > 1<<12 {
				return "no limit"
			}
		}
	case "flood":
		n, _ := strconv.Atoi(arg)
		_, err := io.Copy(os.Stdout, io.LimitReader(zeros{}, int64(n)))
		return fmt.Sprint(err)
	case "exit":
		os.Exit(3)
	}
	return arg
}

type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) { return len(p), nil }
