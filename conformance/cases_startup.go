package conformance

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func startupCases() []Case {
	s := needs(feature(backend.FeatureStartup), shell())
	with := func(more ...Need) []Need { return append(slices.Clone(s), more...) }
	listed := with(feature(backend.FeatureProcesses))
	root := with(feature(backend.FeaturePrivateRoot))
	return []Case{
		{ID: "ST-01", Area: Start, Title: "what a sandbox starts with runs, under its tag, with the sandbox's variables, and its output is held", Needs: listed, Run: startsWith},
		{ID: "ST-02", Area: Start, Title: "create returns once it is ready, and not before", Needs: s, Run: readyFirst},
		{ID: "ST-03", Area: Start, Title: "create fails when it ends before it is ready, at once, with its end and its last words", Needs: s, Run: startDies},
		{ID: "ST-04", Area: Start, Title: "create fails when it is not ready in time, with the last attempt's end and words, bounded and without control characters", Needs: s, Run: neverReady},
		{ID: "ST-05", Area: Start, Title: "an attempt that hangs does not outlast the time to be ready", Needs: s, Run: readyHangs},
		{ID: "ST-06", Area: Start, Title: "a caller who gives up while it becomes ready gets their context's error", Needs: s, Run: readyCanceled},
		{ID: "ST-07", Area: Start, Title: "a port that is open says that it is ready", Needs: with(python(), feature(backend.FeatureDial)), Run: readyPort},
		{ID: "ST-08", Area: Start, Title: "commands start in the sandbox's directory, which is made, unless they name one", Needs: root, Run: beginsIn},
		{ID: "ST-09", Area: Start, Title: "a directory that cannot be made is refused, with the field", Needs: with(feature(backend.FeaturePrivateRoot), enforced(backend.ControlReadOnly)), Run: badDir},
		{ID: "ST-10", Area: Start, Title: "commands run as the sandbox's account, unless they name one", Needs: with(feature(backend.FeatureUsers)), Run: beginsAs},
		{ID: "ST-11", Area: Start, Title: "a malformed startup is refused, with the field", Needs: s, Run: badStartup},
		{ID: "ST-12", Area: Start, Title: "a found sandbox's commands begin as its maker said, and what it started with goes on", Needs: append(slices.Clone(root), feature(backend.FeatureFind), feature(backend.FeatureProcesses)), Run: startupOfFound},
		{ID: "ST-13", Area: Start, Title: "what a sandbox started with goes on after a pause", Needs: append(slices.Clone(listed), feature(backend.FeaturePause)), Run: startupPaused},
	}
}

func script(text string) []string { return []string{"sh", "-c", text} }

// tagged are the commands of sb that have a tag.
func (t *T) tagged(ctx context.Context, sb backend.Sandbox, tag string) []backend.ProcessInfo {
	all, err := find[backend.ProcessFinder](t, "processes", sb).Processes(ctx)
	if err != nil {
		t.Fatalf("processes: %v", err)
	}
	return slices.DeleteFunc(all, func(i backend.ProcessInfo) bool { return i.Tag != tag })
}

func startsWith(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Env: map[string]string{"WORD": "of the spec"}, Startup: backend.Startup{
		Args: script(`echo "$WORD"; exec sleep 1000`), Ready: script("true"),
	}})
	got := t.tagged(ctx, sb, backend.StartupTag)
	if len(got) != 1 || got[0].Exit != nil || got[0].User != backend.DefaultUser {
		t.Fatalf("%+v", got)
	}
	_, out, _ := t.attach(ctx, sb, got[0].ID, true)
	t.until(ctx, "its words are there", func() bool { return out.String() == "of the spec\n" })
	if len(t.tagged(ctx, sb, backend.ReadyTag)) == 0 {
		t.Errorf("no attempt is listed as %s", backend.ReadyTag)
	}
}

func readyFirst(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Startup: backend.Startup{
		Args: script("sleep 0.3; echo 1 >up; exec sleep 1000"), Ready: script("test -s up"), Interval: backend.MinReadyInterval,
	}})
	t.good(t.exec(ctx, sb, "test", "-s", "up"))
	if sb.Receipt().Timings["ready"] <= 0 {
		t.Errorf("the receipt does not say how long it took: %v", sb.Receipt().Timings)
	}
}

func startDies(ctx context.Context, t *T) {
	began := time.Now()
	for name, ready := range map[string]backend.Startup{"false": {Ready: script("exit 1")}, "hanging": {Ready: script("exec sleep 1000")}} {
		ready.Args = script("echo no such thing >&2; exit 3")
		err := t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{Startup: ready}))
		t.refusedWith(name, err, backend.ErrInvalid, "startup.args")
		t.says(err, "exited(3)", "no such thing")
	}
	if took := time.Since(began); took > backend.DefaultReadyTimeout/2 {
		t.Errorf("that was known after %v", took)
	}
}

// says fails the case unless err has all the words.
func (t *T) says(err error, words ...string) {
	for _, w := range words {
		if err != nil && !strings.Contains(err.Error(), w) {
			t.Errorf("%q is not in %v", w, err)
		}
	}
}

func neverReady(ctx context.Context, t *T) {
	err := t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{Startup: backend.Startup{
		Args:  script("echo coming up; exec sleep 1000"),
		Ready: script(`i=0; while [ $i -lt 200 ]; do printf '\033[31mspam'; i=$((i+1)); done; echo; echo not yet; exit 7`), Timeout: 4 * time.Second,
	}}))
	t.refusedWith("never", err, backend.ErrInvalid, "startup.ready")
	t.says(err, "exited(7)", "not yet", "coming up")
	if err != nil && (len(err.Error()) > 4000 || strings.ContainsAny(err.Error(), "\033\n\r")) {
		t.Errorf("%d bytes: %q", len(err.Error()), err)
	}
}

func readyHangs(ctx context.Context, t *T) {
	began := time.Now()
	err := t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{Startup: backend.Startup{
		Args: script("exec sleep 1000"), Ready: script("echo listening; exec sleep 1000"), Timeout: time.Second,
	}}))
	t.refusedWith("hanging", err, backend.ErrInvalid, "startup.ready")
	t.says(err, "listening")
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("it took %v", took)
	}
}

func readyCanceled(ctx context.Context, t *T) {
	cctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := t.refuses(cctx, t.Executor(), t.Spec(backend.Spec{Startup: backend.Startup{Args: script("exec sleep 1000"), Ready: script("exit 1")}}))
	if err == nil || backend.KindOf(err) != "" {
		t.Errorf("%v", err)
	}
}

func readyPort(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Startup: backend.Startup{
		Args: []string{"python3", "-m", "http.server", "--bind", "127.0.0.1", "8123"}, Port: 8123, Interval: backend.MinReadyInterval,
	}})
	t.good(t.python(ctx, sb, "import urllib.request as u; assert u.urlopen('http://127.0.0.1:8123/').status == 200"))
	err := t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{Startup: backend.Startup{
		Args: script("exec sleep 1000"), Port: 8123, Timeout: time.Second,
	}}))
	t.refusedWith("a closed port", err, backend.ErrInvalid, "startup.port")
}

func beginsIn(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Dir: "/tmp/made/here", Startup: backend.Startup{
		Args: script("pwd >where; exec sleep 1000"), Ready: script("test -s where"),
	}})
	if got := t.good(t.exec(ctx, sb, "cat", "where")); got != "/tmp/made/here\n" || sb.Receipt().Dir != "/tmp/made/here" {
		t.Errorf("%q, receipt %q", got, sb.Receipt().Dir)
	}
	if got := t.good(t.command(ctx, sb, backend.Command{Args: []string{"pwd"}, Dir: "/tmp"})); got != "/tmp\n" {
		t.Errorf("its own: %q", got)
	}
	t.write(ctx, sb, "note", "x") // names of files still begin at home
	t.good(t.exec(ctx, sb, "sh", "-c", "test -e ~/note"))
	there := t.Create(ctx, backend.Spec{Dir: "/usr"})
	if got := t.good(t.exec(ctx, there, "pwd")); got != "/usr\n" {
		t.Errorf("one that is there: %q", got)
	}
}

func badDir(ctx context.Context, t *T) {
	for _, dir := range []string{"/usr/no-such-directory", "/etc/passwd", "/etc/passwd/below", "/proc/self/none"} {
		t.refusedWith(dir, t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{Dir: dir})), backend.ErrInvalid, "dir")
	}
}

func beginsAs(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{User: "root", Dir: "/tmp", Startup: backend.Startup{
		Args: script("id -u >who; exec sleep 1000"), Ready: script("test -s who"),
	}})
	if got := t.good(t.exec(ctx, sb, "cat", "who")); got != "0\n" || sb.Receipt().User != "root" {
		t.Errorf("started as %q, receipt %q", got, sb.Receipt().User)
	}
	if got := t.good(t.exec(ctx, sb, "id", "-u")); got != "0\n" {
		t.Errorf("root: %q", got)
	}
	if got := t.good(t.command(ctx, sb, backend.Command{Args: []string{"id", "-un"}, User: backend.DefaultUser})); got != backend.DefaultUser+"\n" {
		t.Errorf("its own: %q", got)
	}
	for _, user := range []string{"daemon", "1234", "no-such-user"} {
		t.unsupportedField(user, t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{User: user})), "user")
	}
}

func badStartup(ctx context.Context, t *T) {
	for field, spec := range map[string]backend.Spec{
		"startup.args":     {Startup: backend.Startup{Ready: []string{"true"}}},
		"startup.port":     {Startup: backend.Startup{Args: []string{"true"}, Port: 65536}},
		"startup.ready":    {Startup: backend.Startup{Args: []string{"true"}, Ready: []string{""}}},
		"startup.timeout":  {Startup: backend.Startup{Args: []string{"true"}, Ready: []string{"true"}, Timeout: -1}},
		"startup.interval": {Startup: backend.Startup{Args: []string{"true"}, Ready: []string{"true"}, Interval: 1}},
		"dir":              {Dir: "relative"},
	} {
		t.refusedWith(field, t.refuses(ctx, t.Executor(), t.Spec(spec)), backend.ErrInvalid, field)
	}
}

func startupOfFound(ctx context.Context, t *T) {
	id := t.keep(ctx, backend.Spec{Dir: "/tmp/mine", Startup: backend.Startup{
		Args: script("echo $$ >pid; exec sleep 1000"), Ready: script("test -s pid"),
	}}, nil)
	sb := t.findAgain(ctx, id)
	t.good(t.sh(ctx, sb, `test "$(pwd)" = /tmp/mine && kill -0 "$(cat pid)"`))
	if got := t.tagged(ctx, sb, backend.StartupTag); len(got) != 1 || got[0].Exit != nil {
		t.Errorf("%+v", got)
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

func startupPaused(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Startup: backend.Startup{
		Args: script("while echo x >>beats; do sleep 0.05; done"), Ready: script("test -s beats"),
	}})
	p := find[backend.Pauser](t, "pause", sb)
	if err := p.Pause(ctx, backend.PauseOptions{}); err != nil {
		t.Fatalf("pause: %v", err)
	}
	if err := p.Resume(ctx); err != nil {
		t.Fatalf("resume: %v", err)
	}
	before := len(t.read(ctx, sb, "beats"))
	t.until(ctx, "it goes on", func() bool { return len(t.read(ctx, sb, "beats")) > before })
	if got := t.tagged(ctx, sb, backend.StartupTag); len(got) != 1 || got[0].Exit != nil {
		t.Errorf("%+v", got)
	}
}
