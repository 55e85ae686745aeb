package examples_test

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// checks are the examples and what must have come of each. The attacks have
// tests of their own.
func checks() map[string]struct {
	language string
	check    func(*testing.T, report)
} {
	type c = struct {
		language string
		check    func(*testing.T, report)
	}
	return map[string]c{
		"look.sh":       {"bash", checkLook},
		"access_log.sh": {"bash", checkAccessLog},
		"make_data.py":  {"python", checkMakeData},
		"sales.py":      {"python", checkSales},
		"sort_bench.py": {"python", checkSort},
		"forth.py":      {"python", checkForth},
		"summary.py":    {"python", checkSummary},
		"invoices.py":   {"python", checkInvoices},
		"primes.js":     {"javascript", checkPrimes},
		"schedule.ts":   {"typescript", checkSchedule},
	}
}

func TestExamples(t *testing.T) {
	t.Parallel()
	for name, c := range checks() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.need(c.language)
			r := w.run(name)
			defer func() {
				if t.Failed() {
					t.Logf("%v\n%s%s", r.Exit, r.Stdout.Text, r.Stderr.Text)
				}
			}()
			c.check(t, r)
		})
	}
}

func TestExamples_areAllTested(t *testing.T) {
	t.Parallel()
	tested := checks()
	files, err := fs.Glob(os.DirFS("."), "*.*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, ok := tested[f]; !ok && filepath.Ext(f) != ".go" && !slices.Contains(others(), f) {
			t.Errorf("%s is not tested", f)
		}
		delete(tested, f)
	}
	for f := range tested {
		t.Errorf("%s is tested and not there", f)
	}
}

func wantExit(t *testing.T, r report, code int) {
	t.Helper()
	if r.Exit.Reason != "exited" || r.Exit.Code != code || r.Code != code {
		t.Errorf("it ended with %v, shown as %d; want exited(%d)", r.Exit, r.Code, code)
	}
}

func wantLines(t *testing.T, r report, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, r.lines()); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
}

func checkLook(t *testing.T, r report) {
	t.Helper()
	wantExit(t, r, 3)
	facts := map[string]string{}
	for _, l := range r.lines() {
		what, is, _ := strings.Cut(l, "  ")
		facts[what] = strings.TrimSpace(is)
	}
	want := map[string]string{
		"I am": "user", "network interfaces I see": "lo", "files in homes I see": "1", "read /etc/shadow": "refused",
		"write to /usr/bin": "refused", "mount a file system": "refused", "connect to 1.1.1.1:53": "refused",
		"write to my own home": "possible", "sum of what I wrote": strconv.Itoa(100000 * 100001 / 2),
	}
	seen, err := strconv.Atoi(facts["processes I see"])
	if err != nil || seen < 1 || seen > 4 {
		t.Errorf("it sees %q processes, and should see itself and the agent", facts["processes I see"])
	}
	delete(facts, "processes I see")
	if diff := cmp.Diff(want, facts); diff != "" {
		t.Errorf("what it found (-want +got):\n%s", diff)
	}
}

// checkMakeData: the data in the repository is what the program makes.
func checkMakeData(t *testing.T, r report) {
	t.Helper()
	wantExit(t, r, 0)
	for _, name := range []string{"sales.csv", "access.log"} {
		got, err := os.ReadFile(filepath.Join(r.dir, "examples", "data", name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join("data", name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-repository +made):\n%s", name, diff)
		}
		line := fmt.Sprintf("%s: %d lines, %d bytes", name, strings.Count(string(want), "\n"), len(want))
		if !slices.Contains(strings.Split(r.Stderr.Text, "\n"), line) {
			t.Errorf("standard error lacks %q:\n%s", line, r.Stderr.Text)
		}
	}
}

type salesReport struct {
	Orders    int            `json:"orders"`
	Units     int            `json:"units"`
	Revenue   int            `json:"revenue_cents"`
	ByRegion  map[string]int `json:"by_region"`
	ByProduct map[string]int `json:"by_product"`
	ByMonth   map[string]int `json:"by_month"`
}

func checkSales(t *testing.T, r report) {
	t.Helper()
	wantExit(t, r, 0)
	f, err := os.Open("data/sales.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) < 200 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	want := salesReport{ByRegion: map[string]int{}, ByProduct: map[string]int{}, ByMonth: map[string]int{}}
	for _, row := range rows[1:] {
		quantity, cents := atoi(t, row[4]), atoi(t, row[5])
		want.Orders++
		want.Units += quantity
		want.Revenue += quantity * cents
		want.ByRegion[row[2]] += quantity * cents
		want.ByProduct[row[3]] += quantity * cents
		want.ByMonth[row[1][:7]] += quantity * cents
	}
	data, err := os.ReadFile(filepath.Join(r.dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got salesReport
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report.json (-want +got):\n%s", diff)
	}
	last := fmt.Sprintf("in all: %d orders, %d units, %s", want.Orders, want.Units, euros(want.Revenue))
	if l := r.lines(); l[len(l)-1] != last {
		t.Errorf("the last line is %q, want %q", l[len(l)-1], last)
	}
}

func euros(cents int) string {
	whole := strconv.Itoa(cents / 100)
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	return fmt.Sprintf("%s.%02d", whole, cents%100)
}

func checkSort(t *testing.T, r report) {
	t.Helper()
	wantExit(t, r, 0)
	numbers := make([]uint32, 20000)
	x := uint32(2463534242)
	for i := range numbers {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		numbers[i] = x
	}
	slices.Sort(numbers)
	var sum uint64
	for i, n := range numbers {
		sum = (sum + uint64(i+1)*uint64(n)) % 1_000_000_007
	}
	line := regexp.MustCompile(`^(\w+) +[0-9.]+ ms +[0-9.]+ x  check ([0-9]+)$`)
	var algorithms []string
	for _, l := range r.lines() {
		m := line.FindStringSubmatch(l)
		if m == nil || m[2] != strconv.FormatUint(sum, 10) {
			t.Errorf("%q, want a check sum of %d", l, sum)
			continue
		}
		algorithms = append(algorithms, m[1])
	}
	if want := []string{"builtin", "radix", "quick", "heap", "merge"}; !slices.Equal(algorithms, want) {
		t.Errorf("it timed %q, want %q", algorithms, want)
	}
}

func checkForth(t *testing.T, r report) {
	t.Helper()
	wantExit(t, r, 0)
	primes, factorials := "primes: ", "factorials: "
	for n := range 100 {
		if isPrime(n) {
			primes += strconv.Itoa(n) + " "
		}
	}
	f := 1
	for n := 1; n <= 10; n++ {
		f *= n
		factorials += strconv.Itoa(f) + " "
	}
	wantLines(t, r, []string{primes, factorials})
}

func isPrime(n int) bool {
	for d := 2; d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return n >= 2
}

func checkSummary(t *testing.T, r report) {
	t.Helper()
	wantExit(t, r, 0)
	const n = 1000.0
	// Of 1 to n: the mean is (n+1)/2, the variance (n²-1)/12.
	wantLines(t, r, []string{
		"count 1000", fmt.Sprintf("mean %.6f", (n+1)/2), fmt.Sprintf("deviation %.6f", math.Sqrt((n*n-1)/12)), "range 1 to 1000",
	})
}

func checkInvoices(t *testing.T, r report) {
	t.Helper()
	wantExit(t, r, 1)
	if got := strings.TrimSpace(r.rest); got != fmt.Sprintf("exit code %d", r.Exit.Code) {
		t.Errorf("the shell says %q", got)
	}
	wantLines(t, r, []string{
		fmt.Sprintf("invoice 17: %d cents, %d so far", (2*1250+399)*119/100, (2*1250+399)*119/100),
		fmt.Sprintf("invoice 18: %d cents, %d so far", 7*80*107/100, (2*1250+399)*119/100+7*80*107/100),
	})
	for _, want := range []string{"Traceback (most recent call last):", "/invoices.py\", line ", "in gross", "KeyError: 'tax'"} {
		if !strings.Contains(r.Stderr.Text, want) {
			t.Errorf("standard error lacks %q:\n%s", want, r.Stderr.Text)
		}
	}
}

func checkPrimes(t *testing.T, r report) {
	t.Helper()
	wantExit(t, r, 0)
	const limit, workers = 2_000_000, 4
	composite := make([]bool, limit)
	counts := make([]int, workers)
	count, sum := 0, 0
	for n := 2; n < limit; n++ {
		if composite[n] {
			continue
		}
		count++
		sum += n
		counts[n/(limit/workers)]++
		for m := n * n; m < limit; m += n {
			composite[m] = true
		}
	}
	var want []string
	for i, c := range counts {
		want = append(want, fmt.Sprintf("worker %d: %d primes from %d to %d", i, c, i*limit/workers, (i+1)*limit/workers-1))
	}
	got := r.lines()
	slices.Sort(got[:len(got)-1]) // workers end in any order
	want = append(want, fmt.Sprintf("%d primes below %d, their sum is %d", count, limit, sum))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
}

type task struct {
	Name   string   `json:"name"`
	Millis int      `json:"millis"`
	After  []string `json:"after"`
}

func checkSchedule(t *testing.T, r report) {
	t.Helper()
	wantExit(t, r, 0)
	data, err := os.ReadFile("data/plan.json")
	if err != nil {
		t.Fatal(err)
	}
	var plan []task
	if err := json.Unmarshal(data, &plan); err != nil {
		t.Fatal(err)
	}
	// The plan lists tasks after those they wait for, so one pass is enough.
	ends, critical := map[string]int{}, 0
	for _, task := range plan {
		for _, a := range task.After {
			ends[task.Name] = max(ends[task.Name], ends[a])
		}
		ends[task.Name] += task.Millis
		critical = max(critical, ends[task.Name])
	}
	var done []string
	for _, l := range r.lines() {
		if name, ok := strings.CutPrefix(l, "done  "); ok {
			done = append(done, name)
		}
	}
	if len(done) != len(plan) {
		t.Errorf("%d of %d tasks are done", len(done), len(plan))
	}
	for _, task := range plan {
		for _, a := range task.After {
			if slices.Index(done, a) > slices.Index(done, task.Name) {
				t.Errorf("%s was done before %s, which it waits for", task.Name, a)
			}
		}
	}
	last := r.lines()[len(r.lines())-2:]
	if !strings.HasPrefix(last[0], "critical path: ") || !strings.HasSuffix(last[0], fmt.Sprintf(", %d ms", critical)) {
		t.Errorf("%q, want a path of %d ms", last[0], critical)
	}
	if !strings.HasSuffix(last[1], " ms, not less than the critical path") {
		t.Error(last[1])
	}
}

func checkAccessLog(t *testing.T, r report) {
	t.Helper()
	wantExit(t, r, 0)
	f, err := os.Open("data/access.log")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	paths, statuses, addresses := map[string]int{}, map[string]int{}, map[string]bool{}
	var millis []int
	for sc := bufio.NewScanner(f); sc.Scan(); {
		fields := strings.Fields(strings.ReplaceAll(sc.Text(), `"`, ""))
		addresses[fields[0]] = true
		paths[fields[3]]++
		statuses[fields[4]]++
		millis = append(millis, atoi(t, strings.TrimSuffix(fields[6], "ms")))
	}
	slices.Sort(millis)
	table := func(counts map[string]int) (out []string) {
		for name, n := range counts {
			out = append(out, fmt.Sprintf("  %4d  %s", n, name))
		}
		slices.Sort(out)
		return out
	}
	want := []string{"requests by path"}
	want = append(want, table(paths)...)
	want = append(want, "requests by status")
	want = append(want, table(statuses)...)
	n := len(millis)
	want = append(want, "milliseconds",
		fmt.Sprintf("  median %d, 95th percentile %d, longest %d", millis[(n+1)/2-1], millis[n*95/100-1], millis[n-1]),
		fmt.Sprintf("requests in all: %d from %d addresses", n, len(addresses)))
	got := r.lines()
	if len(got) == len(want) {
		slices.Sort(got[1 : 1+len(paths)])
		slices.Sort(got[2+len(paths) : 2+len(paths)+len(statuses)])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
