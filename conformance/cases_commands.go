package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func commandCases() []Case {
	sh := needs(shell())
	return []Case{
		{ID: "CM-01", Area: Commands, Title: "all exit codes from 0 to 255", Needs: sh, Run: exitCodes},
		{ID: "CM-02", Area: Commands, Title: "a command that a signal ends is signaled, with 128 and the number", Needs: sh, Run: endedBySignal},
		{ID: "CM-03", Area: Commands, Title: "a program that is missing is exited(127)", Needs: sh, Run: missingProgram},
		{ID: "CM-04", Area: Commands, Title: "a program that cannot be executed is exited(126)", Needs: sh, Run: notExecutable},
		{ID: "CM-05", Area: Commands, Title: "a program that returns 124, 126, 127 or 137 has exited", Needs: sh, Run: reservedCodes},
		{ID: "CM-06", Area: Commands, Title: "arguments arrive as they are", Needs: sh, Run: arguments},
		{ID: "CM-07", Area: Commands, Title: "the command's environment wins over the sandbox's", Needs: sh, Run: environment},
		{ID: "CM-08", Area: Commands, Title: "nothing of the host's environment arrives", Needs: sh, Run: hostEnvironment},
		{ID: "CM-09", Area: Commands, Title: "HOME, USER, LOGNAME and PATH are set", Needs: sh, Run: usualEnvironment},
		{ID: "CM-10", Area: Commands, Title: "a program is looked up in the command's own PATH", Needs: sh, Run: lookup},
		{ID: "CM-11", Area: Commands, Title: "the working directory is the home, or what was asked for", Needs: sh, Run: workingDirectory},
		{ID: "CM-12", Area: Commands, Title: "a working directory that is missing is invalid", Needs: sh, Run: missingDirectory},
		{ID: "CM-13", Area: Commands, Title: "commands run as the account user, who is not root", Needs: sh, Run: defaultUser},
		{ID: "CM-14", Area: Commands, Title: "root and user are two accounts, and an unknown one is not found", Needs: append(sh, feature(backend.FeatureUsers)), Run: users},
		{ID: "CM-15", Area: Commands, Title: "root inside cannot do what root outside could", Needs: append(sh, feature(backend.FeatureUsers), enforced(backend.ControlPrivileges)), Run: powerlessRoot},
		{ID: "CM-16", Area: Commands, Title: "a hundred commands one after another", Needs: sh, Run: hundredCommands},
		{ID: "CM-17", Area: Commands, Title: "what one command leaves in the home the next one finds", Needs: sh, Run: stateStays},
		{ID: "CM-18", Area: Commands, Title: "no descriptor but the three is open", Needs: needs(python()), Run: descriptors},
		{ID: "CM-19", Area: Commands, Title: "signals are neither blocked nor ignored at the start", Needs: needs(python()), Run: signalState},
		{ID: "CM-20", Area: Commands, Title: "each command has an ID of its own", Needs: sh, Run: commandIDs},
		{ID: "CM-21", Area: Commands, Title: "arguments that are too long end with a code or an error, never with silence", Needs: sh, Run: hugeArguments},
		{ID: "CM-22", Area: Commands, Title: "an executable file without a first line for the kernel is a script of sh, or exited(126)", Needs: sh, Run: noProgram},
	}
}

func exitCodes(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for code := range 256 {
		got := t.exec(ctx, sb, "sh", "-c", fmt.Sprintf("exit %d", code))
		if got.Reason != backend.ReasonExited || got.Code != code || got.Signal != 0 || len(got.Hits) != 0 {
			t.Errorf("exit %d: %+v", code, got.Exit)
		}
	}
}

func endedBySignal(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for _, sig := range []int{1, 2, 3, 6, 9, 11, 13, 14, 15} {
		got := t.sh(ctx, sb, fmt.Sprintf("ulimit -c 0; kill -%d $$; sleep 5", sig))
		if got.Reason != backend.ReasonSignaled || int(got.Signal) != sig || got.Code != 128+sig {
			t.Errorf("signal %d: %+v", sig, got.Exit)
		}
	}
}

func missingProgram(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.exited("in PATH", t.exec(ctx, sb, "no-such-program").Exit, "exited(127)")
	t.exited("by path", t.exec(ctx, sb, "/no/such/program").Exit, "exited(127)")
	t.exited("relative", t.exec(ctx, sb, "./no-such-program").Exit, "exited(127)")
	if err := backend.WriteFile(ctx, sb.Files(), "script", []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	t.exited("interpreter", t.exec(ctx, sb, "./script").Exit, "exited(127)")
}

func notExecutable(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "plain", "#!/bin/sh\n")
	t.exited("without the bit", t.exec(ctx, sb, "./plain").Exit, "exited(126)")
	t.exited("a directory", t.exec(ctx, sb, "/usr").Exit, "exited(126)")
}

func noProgram(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	if err := backend.WriteFile(ctx, sb.Files(), "script", []byte("echo ran\n"), 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	if got := t.exec(ctx, sb, "./script"); got.String() != "exited(126)" && (!got.Success() || got.out != "ran\n") {
		t.Errorf("%v %q %q", got.Exit, got.out, got.err)
	}
	if err := backend.WriteFile(ctx, sb.Files(), "junk", []byte("\x7fELF\x02 no program"), 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	if got := t.exec(ctx, sb, "./junk"); got.Reason != backend.ReasonExited || got.Code != 126 && got.Code != 127 && got.Code != 2 {
		t.Errorf("%v", got.Exit)
	}
}

func reservedCodes(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for _, code := range []int{124, 125, 126, 127, 128, 137, 143} {
		got := t.sh(ctx, sb, fmt.Sprintf("exit %d", code))
		t.exited("its own", got.Exit, fmt.Sprintf("exited(%d)", code))
	}
	got := t.sh(ctx, sb, "sh -c 'kill -9 $$'; exit 7")
	t.exited("after a child was killed", got.Exit, "exited(7)")
}

func arguments(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	args := []string{"", " ", "a b", "'\"`$HOME*?", "line\nline", "\t", "ünïcödé ☃", "-n", "--", strings.Repeat("x", 100_000), "\x7f\x1b[0m"}
	got := t.good(t.exec(ctx, sb, slices.Concat([]string{"sh", "-c", `for a; do printf '%s\001' "$a"; done`, "sh"}, args)...))
	if want := strings.Join(args, "\x01") + "\x01"; got != want {
		t.Errorf("%.300q", got)
	}
}

func environment(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Env: map[string]string{"A": "sandbox", "B": "sandbox", "EMPTY": ""}})
	got := t.good(t.command(ctx, sb, backend.Command{
		Args: []string{"sh", "-c", `printf '%s|%s|%s|%s' "$A" "$B" "$C" "${EMPTY-unset}"`}, Env: map[string]string{"B": "command", "C": "line\nline = 'x'"},
	}))
	if got != "sandbox|command|line\nline = 'x'|" {
		t.Errorf("%q", got)
	}
	if got := t.good(t.sh(ctx, sb, `printf '%s' "$B"`)); got != "sandbox" {
		t.Errorf("the next command's: %q", got)
	}
}

func hostEnvironment(ctx context.Context, t *T) {
	got := "\n" + t.good(t.sh(ctx, t.Create(ctx, backend.Spec{}), "env"))
	usual := []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "PWD", "OLDPWD", "HOSTNAME", "SHLVL", "_", "TZ"}
	looked := 0
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(usual, name) || strings.HasPrefix(name, "LC_") || value == "" {
			continue
		}
		looked++
		if strings.Contains(got, "\n"+name+"="+value) {
			t.Errorf("%s of the host is there", name)
		}
	}
	if looked == 0 {
		t.Inconclusivef("this process has no environment that could show")
	}
}

func usualEnvironment(ctx context.Context, t *T) {
	got := t.good(t.sh(ctx, t.Create(ctx, backend.Spec{}), `cd && printf '%s %s %s ' "$(pwd -P)" "$USER" "$LOGNAME"; test -w "$HOME" && test -n "$PATH" && echo fine`))
	home, rest, _ := strings.Cut(got, " ")
	if rest != "user user fine\n" || t.Caps().Has(backend.FeaturePrivateRoot) && home != backend.DefaultHome {
		t.Errorf("%q", got)
	}
}

func lookup(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	home := strings.TrimSpace(t.good(t.sh(ctx, sb, "pwd -P")))
	if err := backend.WriteFile(ctx, sb.Files(), "bin/mine", []byte("#!/bin/sh\necho mine\n"), 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	got := t.command(ctx, sb, backend.Command{Args: []string{"mine"}, Env: map[string]string{"PATH": "/nowhere:" + home + "/bin"}})
	if got.out != "mine\n" {
		t.Errorf("%v %q %q", got.Exit, got.out, got.err)
	}
	got = t.command(ctx, sb, backend.Command{Args: []string{"true"}, Env: map[string]string{"PATH": "/nowhere"}})
	t.exited("outside the PATH", got.Exit, "exited(127)")
}

func workingDirectory(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	home := strings.TrimSpace(t.good(t.sh(ctx, sb, "mkdir -p a/b && cd && pwd -P")))
	for dir, want := range map[string]string{"": home, "a": home + "/a", "a/b/..": home + "/a", home + "/a/b": home + "/a/b", "/usr": "/usr"} {
		got := t.good(t.command(ctx, sb, backend.Command{Args: []string{"sh", "-c", "pwd -P"}, Dir: dir}))
		if got != want+"\n" {
			t.Errorf("dir %q: %q, want %q", dir, got, want)
		}
	}
}

func missingDirectory(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "file", "")
	for _, dir := range []string{"missing", "file", "/nowhere/x"} {
		_, err := sb.Start(ctx, backend.Command{Args: []string{"true"}, Dir: dir})
		t.kind("dir "+dir, err, backend.ErrInvalid)
	}
}

func defaultUser(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	uid := t.good(t.sh(ctx, sb, "id -u"))
	if uid == "0\n" && t.Caps().Isolation > backend.IsolationNone {
		t.Errorf("they run as root")
	}
	if again := t.good(t.command(ctx, sb, backend.Command{Args: []string{"id", "-u"}, User: backend.DefaultUser})); again != uid {
		t.Errorf("user is %q, nobody in particular %q", again, uid)
	}
}

func users(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for user, want := range map[string]string{"root": "0 root\n", "user": " user\n"} {
		got := t.good(t.command(ctx, sb, backend.Command{Args: []string{"sh", "-c", `echo "$(id -u) $(id -un)"`}, User: user}))
		if !strings.HasSuffix(got, want) {
			t.Errorf("%s is %q", user, got)
		}
	}
	_, err := sb.Start(ctx, backend.Command{Args: []string{"true"}, User: "mallory"})
	t.kind("an unknown account", err, backend.ErrNotFound)
}

func powerlessRoot(ctx context.Context, t *T) {
	if t.Caps().Isolation >= backend.IsolationKernel {
		return // a kernel of its own contains a root with capabilities as well
	}
	sb := t.Create(ctx, backend.Spec{})
	got := t.command(ctx, sb, backend.Command{User: "root", Args: []string{"sh", "-c", `
for what in 'mount -t tmpfs x /mnt' 'touch /usr/conformance' 'echo x >/proc/sys/kernel/hostname' 'mknod /tmp/d c 1 3' 'chown 1 /tmp'; do
	(eval "$what") 2>/dev/null && echo "$what"
done
echo tried`}})
	if got.out != "tried\n" {
		t.Errorf("root can: %s", got.out)
	}
}

func hundredCommands(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for i := range 100 {
		if got := t.exec(ctx, sb, "echo", fmt.Sprint(i)); got.out != fmt.Sprintf("%d\n", i) {
			t.Errorf("%d: %v %q", i, got.Exit, got.out)
		}
	}
}

func stateStays(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "echo 1 >here; cd /tmp; export X=1"))
	if got := t.good(t.sh(ctx, sb, `cat here; printf '%s' "$X"`)); got != "1\n" {
		t.Errorf("%q", got)
	}
}

func descriptors(ctx context.Context, t *T) {
	got := t.good(t.python(ctx, t.Create(ctx, backend.Spec{}), `
import os
for fd in range(3, 4096):
    try:
        os.fstat(fd)
        print(fd)
    except OSError:
        pass
`))
	if got != "" {
		t.Errorf("open: %q", got)
	}
}

func signalState(ctx context.Context, t *T) {
	got := t.good(t.python(ctx, t.Create(ctx, backend.Spec{}), `
import signal
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
own = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these by itself
print([s for s in signal.valid_signals() if s not in own and signal.getsignal(s) == signal.SIG_IGN])
`))
	if got != "[]\n[]\n" {
		t.Errorf("blocked and ignored: %q", got)
	}
}

func commandIDs(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	seen := map[string]bool{}
	for range 5 {
		p, _, _ := t.start(ctx, sb, backend.Command{Args: []string{"true"}})
		if p.ID() == "" || seen[p.ID()] {
			t.Errorf("ID %q", p.ID())
		}
		seen[p.ID()] = true
		t.wait(ctx, p)
	}
}

func hugeArguments(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	short, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	got, err := tryRun(short, sb, backend.Command{Args: []string{"true", strings.Repeat("x", 3<<20)}})
	switch {
	case err == nil && got.Success():
		t.Errorf("3 MiB in one argument were executed")
	case errors.Is(err, context.DeadlineExceeded) || backend.KindOf(err) == backend.ErrInternal:
		t.Errorf("%v", err)
	}
	t.good(t.exec(ctx, sb, "true"))
}
