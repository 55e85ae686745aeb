//go:build linux

package subprocess_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// big is room for compilers and interpreters.
func big() backend.Spec {
	return backend.Spec{Limits: backend.Limits{Memory: 1 << 30}}
}

// program is one that works in a plain container and must work here.
type program struct {
	name  string
	needs []string
	args  []string
	stdin string
	want  string // the whole standard output
	modes []subprocess.Privilege
}

func TestPrograms(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, big())
		for _, p := range programs() {
			if p.modes != nil && !slices.Contains(p.modes, h.privilege) {
				continue
			}
			t.Run(p.name, func(t *testing.T) {
				for _, n := range p.needs {
					systemProgram(t, n)
				}
				cmd := backend.Command{Args: p.args, Timeout: 2 * time.Minute}
				if p.stdin != "" {
					cmd.Stdin = strings.NewReader(p.stdin)
				}
				if got := run(t, sb, cmd).succeed(t); got.out != p.want {
					t.Errorf("stdout %q\nwant   %q\nstderr %s", got.out, p.want, got.err)
				}
			})
		}
	})
}

// systemProgram skips the test when a program is not among the host's own, the
// only ones that sandboxes see.
func systemProgram(t testing.TB, name string) {
	t.Helper()
	for _, dir := range []string{"/usr/bin", "/bin", "/usr/sbin"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return
		}
	}
	t.Skipf("%s is not installed", name)
}

func programs() []program {
	py := func(name, code, want string, modes ...subprocess.Privilege) program {
		return program{name: name, args: []string{"/usr/bin/python3", "-c", code}, want: want, modes: modes}
	}
	node := func(name, code, want string, modes ...subprocess.Privilege) program {
		return program{name: name, needs: []string{"node"}, args: []string{"node", "-e", code}, want: want, modes: modes}
	}
	bash := func(name, code, want string, needs ...string) program {
		return program{name: name, needs: append(needs, "bash"), args: []string{"bash", "-ec", code}, want: want}
	}
	ns := func(p program) program {
		p.modes = namespaced
		return p
	}
	return []program{
		py("pool", "import multiprocessing as m\nwith m.Pool(4) as p: print(sum(p.map(abs, range(-1000, 0))))", "500500\n", namespaced...),
		py("multiprocessing queue", multiQueue, "[0, 1, 4, 9, 16]\n", namespaced...),
		py("shared memory", "from multiprocessing import shared_memory as s\nm = s.SharedMemory(create=True, size=4096)\nm.buf[0] = 7\nn = s.SharedMemory(m.name)\nprint(n.buf[0])\nn.close(); m.close(); m.unlink()", "7\n", namespaced...),
		py("asyncio subprocess", asyncioSubprocess, "0 b'a\\nb\\n'\n7 b''\n", namespaced...),
		py("threads", "import threading\nn = []\nts = [threading.Thread(target=lambda i=i: n.append(i)) for i in range(100)]\n[t.start() for t in ts]; [t.join() for t in ts]\nprint(len(n))", "100\n"),
		py("executors", "import concurrent.futures as c\nwith c.ThreadPoolExecutor(8) as e: print(sum(e.map(lambda x: x * x, range(100))))", "328350\n"),
		py("loopback", loopback, "b'hello'\n", namespaced...),
		py("unix sockets", "import socket, os\ns = socket.socket(socket.AF_UNIX)\ns.bind('/tmp/u'); s.listen()\nc = socket.socket(socket.AF_UNIX); c.connect('/tmp/u')\nd, _ = s.accept(); d.send(b'x'); print(c.recv(1)); os.unlink('/tmp/u')", "b'x'\n", namespaced...),
		py("temporary files", "import tempfile, os\nwith tempfile.TemporaryDirectory() as d:\n  open(d + '/x', 'w').write('y'); print(os.listdir(d))", "['x']\n", namespaced...),
		py("sqlite", "import sqlite3\nc = sqlite3.connect('t.db'); c.execute('create table t(x)'); c.executemany('insert into t values(?)', [(i,) for i in range(1000)]); c.commit(); print(c.execute('select sum(x) from t').fetchone())", "(499500,)\n"),
		py("who and where", "import os, pwd, getpass, socket\nprint(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name, os.path.expanduser('~'), socket.gethostname(), socket.gethostbyname('localhost'))", "user user /home/user sandbox 127.0.0.1\n", namespaced...),
		py("terminal pairs", "import pty, os\npid, fd = pty.fork()\nif pid == 0: os.execlp('echo', 'echo', 'in a terminal')\nprint(os.read(fd, 100)); os.waitpid(pid, 0)", "b'in a terminal\\r\\n'\n"),
		py("fork bomb's cousin", "import os\nfor i in range(500):\n  p = os.fork()\n  if p == 0: os._exit(0)\n  os.waitpid(p, 0)\nprint('ok')", "ok\n"),
		node("worker_threads", nodeWorker, "worker says 42\n"),
		node("child_process", "const c = require('child_process'); console.log(c.execFileSync('sh', ['-c', 'echo $((6*7))']).toString().trim()); c.exec('exit 3', (e) => console.log(e.code))", "42\n3\n"),
		node("fork", "const c = require('child_process'); if (process.argv[1] === 'kid') process.send('hi'); else { require('fs').writeFileSync('k.js', 'process.send(process.argv[2])'); c.fork('k.js', ['hi']).on('message', (m) => console.log(m)) }", "hi\n", namespaced...),
		node("http server", "const h = require('http'); const s = h.createServer((q, r) => r.end('served')).listen(0, '127.0.0.1', () => h.get({port: s.address().port}, (r) => r.on('data', (d) => { console.log(d.toString()); s.close() })))", "served\n", namespaced...),
		node("memory and processors", "const os = require('os'); console.log(os.totalmem() > 1e6, os.cpus().length > 0, os.hostname(), os.userInfo().username)", "true true sandbox user\n", namespaced...),
		node("promises and files", "const f = require('fs/promises'); (async () => { await f.mkdir('n/m', {recursive: true}); await f.writeFile('n/m/x', 'y'); console.log(await f.readdir('n', {recursive: true})); await f.rm('n', {recursive: true}) })()", "[ 'm', 'm/x' ]\n"),
		bash("pipelines", "seq 1 1000 | sort -rn | head -3 | tr '\\n' ' ' | tee copy | wc -w; paste <(echo a) <(echo b); diff <(seq 3) <(seq 3) && echo same; x=(1 2 3); echo ${x[@]/2/two}; cat <<<here", "3\na\tb\nsame\n1 two 3\nhere\n"),
		ns(bash("jobs", "sleep 0.2 & wait -n; coproc cat; echo hi >&${COPROC[1]}; read -u ${COPROC[0]} l; echo $l; trap 'echo bye' EXIT; timeout 0.1 sleep 5 || echo $?", "hi\n124\nbye\n", "timeout")),
		bash("text tools", "printf 'b,2\\na,1\\n' >d.csv; sort d.csv | awk -F, '{s += $2; print $1} END {print s}'; sed -n 's/a,/A:/p' d.csv; find . -maxdepth 1 -name d.csv | xargs wc -l; tar cf - d.csv | tar tf -; gzip -c d.csv | gunzip | md5sum | cut -c1-4", "a\nb\n3\nA:1\n2 ./d.csv\nd.csv\n4e8c\n", "awk", "gzip", "tar"),
		bash("perl", `perl -MPOSIX -MFile::Temp=tempfile -e '$_ = "x1y22"; print join(",", /\d+/g), "\n"; my $p = fork; exit 3 unless $p; waitpid $p, 0; print $? >> 8, "\n"'`, "1,22\n3\n", "perl"),
		ns(bash("ps", "ps -eo comm= | sort | uniq -c | awk '{print $2}' | grep -c -e ps -e bash", "2\n", "ps")),
		ns(bash("free", "free -b | awk '/^Mem/ {print ($2 > 1000000)}'; nproc | grep -c .; uptime >/dev/null && echo up; df /home/user | tail -1 | awk '{print $1}'", "1\n1\nup\ntmpfs\n", "free")),
		ns(bash("gcc", gccProgram, "compiled 42, thread 7\n", "gcc")),
		ns(bash("git", gitSession, "first\n 1 file changed, 1 insertion(+)\n2\n", "git")),
		{name: "standard input", args: []string{"/usr/bin/python3", "-"}, stdin: "print('from stdin')\n", want: "from stdin\n"},
	}
}

const (
	multiQueue = `
import multiprocessing as m
def square(q, x): q.put(x * x)
q = m.Queue()
ps = [m.Process(target=square, args=(q, i)) for i in range(5)]
[p.start() for p in ps]
print(sorted(q.get() for _ in ps))
[p.join() for p in ps]
`
	asyncioSubprocess = `
import asyncio
async def main():
    for script in ("echo a; echo b", "exit 7"):
        p = await asyncio.create_subprocess_shell(script, stdout=asyncio.subprocess.PIPE)
        out, _ = await p.communicate()
        print(p.returncode, out)
asyncio.run(main())
`
	loopback = `
import socket, threading
s = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: s.accept()[0].sendall(b"hello")).start()
print(socket.create_connection(s.getsockname()).recv(10))
`
	nodeWorker = `
const {Worker} = require('worker_threads')
new Worker("require('worker_threads').parentPort.postMessage(6 * 7)", {eval: true}).on('message', (m) => console.log('worker says', m))
`
	gccProgram = `
mkdir -p c && cd c && cat >a.c <<'END'
#include <pthread.h>
#include <stdio.h>
static void *f(void *p) { *(int *)p = 7; return 0; }
int main(void) {
  pthread_t t; int n = 0;
  pthread_create(&t, 0, f, &n); pthread_join(t, 0);
  printf("compiled %d, thread %d\n", 6 * 7, n);
}
END
gcc -O2 -Wall -o a a.c -lpthread && ./a`
	gitSession = `
rm -rf r && git init -q r && cd r && git config user.name u && git config user.email u@example.com
echo one >f && git add f && git commit -qm first && git log --format=%s
echo two >>f && git commit -qam second && git show --shortstat --format= && git rev-list --count HEAD`
)

// TestPrograms_virtualEnvironment brings one of the host in, read-only.
func TestPrograms_virtualEnvironment(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		testenv.NeedProgram(t, "/usr/bin/python3")
		dir := filepath.Join(hostDir(t), "venv")
		if out, err := exec.CommandContext(t.Context(), "/usr/bin/python3", "-m", "venv", "--without-pip", dir).CombinedOutput(); err != nil {
			t.Skipf("no virtual environments here: %v %s", err, out)
		}
		lib, err := filepath.Glob(filepath.Join(dir, "lib/python3*/site-packages"))
		if err != nil || len(lib) != 1 {
			t.Fatal(lib, err)
		}
		if err := os.WriteFile(filepath.Join(lib[0], "mine.py"), []byte("answer = 42\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		sb := h.create(t, backend.Spec{Mounts: []backend.Mount{{HostPath: dir, Target: dir, ReadOnly: true}}})
		got := run(t, sb, backend.Command{
			Args: []string{dir + "/bin/python", "-c", "import mine, sys; print(mine.answer, sys.prefix != sys.base_prefix)"},
		}).succeed(t)
		if got.out != "42 True\n" {
			t.Errorf("%q %q", got.out, got.err)
		}
	})
}
