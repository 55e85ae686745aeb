package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	t.Parallel()
	const in = `goos: linux
pkg: github.com/glovebox-dev/glovebox/docker/bench
BenchmarkCold/echo-2         	      50	1234567 ns/op	        12.5 cold-ms	         0.9000 cold/docker-run
BenchmarkMany            	       1	       0.0 ns/op	         3.000 MB/sandbox
PASS
ok  	github.com/glovebox-dev/glovebox/docker/bench	1.0s
`
	var out, rest bytes.Buffer
	if err := table(strings.NewReader(in), &out, &rest); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| docker | Cold/echo | cold-ms 12.5, cold/docker-run 0.9000 |\n", "| docker | Many | MB/sandbox 3.000 |\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "ok ") || !strings.Contains(rest.String(), "ok ") {
		t.Errorf("%q", rest.String())
	}
	for _, broken := range []string{"", in + "--- FAIL: BenchmarkX\nFAIL\n"} {
		if err := table(strings.NewReader(broken), &out, &rest); err == nil {
			t.Errorf("%q", broken)
		}
	}
}
