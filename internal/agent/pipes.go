//go:build linux

package agent

import (
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/asuser"
)

// ends are the files of one command: the child's, and ours.
type ends struct {
	child  [3]*os.File
	in     *os.File
	out    []*os.File // stdout and stderr, or the terminal
	tty    bool
	closer []*os.File
}

// closeChild closes what only the child needs.
func (e *ends) closeChild() {
	for i, f := range e.child {
		if f != nil && (i == 0 || f != e.child[i-1]) {
			_ = f.Close()
		}
	}
}

// closeAll closes everything, after a start that failed.
func (e *ends) closeAll() {
	e.closeChild()
	for _, f := range e.closer {
		_ = f.Close()
	}
}

// pipe makes a pipe. Our end can be polled; the child's blocks, as programs
// expect.
func (e *ends) pipe(read bool) (ours, child *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("pipe: %w", err)
	}
	i := 1
	if read {
		i = 0
	}
	err = unix.SetNonblock(p[i], true)
	ours, child = os.NewFile(uintptr(p[i]), "|"), os.NewFile(uintptr(p[1-i]), "|")
	e.closer = append(e.closer, ours)
	if err != nil {
		_ = child.Close()
	}
	return ours, child, err
}

// openPipes makes the files of a command without a terminal.
func openPipes(stdin bool) (*ends, error) {
	e := &ends{}
	var err error
	if stdin {
		e.in, e.child[0], err = e.pipe(false)
	} else {
		e.child[0], err = os.Open(os.DevNull)
	}
	for i := 1; i <= 2 && err == nil; i++ {
		var ours *os.File
		ours, e.child[i], err = e.pipe(true)
		e.out = append(e.out, ours)
	}
	if err != nil {
		e.closeAll()
		return nil, err
	}
	return e, nil
}

// openTerminal makes the files of a command with a terminal of that size.
func openTerminal(cols, rows uint32) (*ends, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	master := os.NewFile(uintptr(fd), "/dev/ptmx")
	slave, err := openSlave(fd)
	if err == nil {
		err = resize(fd, cols, rows)
	}
	e := &ends{child: [3]*os.File{slave, slave, slave}, in: master, out: []*os.File{master}, tty: true, closer: []*os.File{master}}
	if err != nil {
		e.closeAll()
		return nil, err
	}
	return e, nil
}

// openSlave opens the terminal behind a master.
func openSlave(master int) (*os.File, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, fmt.Errorf("unlock terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return nil, fmt.Errorf("number of terminal: %w", err)
	}
	f, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open terminal: %w", err)
	}
	return f, nil
}

// resize sets a terminal's size; 0 means 80 by 24.
func resize(fd int, cols, rows uint32) error {
	size := func(n, def uint32) uint16 {
		if n == 0 {
			n = def
		}
		return uint16(min(n, math.MaxUint16))
	}
	ws := &unix.Winsize{Col: size(cols, 80), Row: size(rows, 24)}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, ws); err != nil {
		return fmt.Errorf("size of terminal: %w", err)
	}
	return nil
}

// openFor makes a command's files with open such that the account owns them: a
// program may open /dev/stdout or its terminal again by name. An agent that
// cannot do that leaves them its own.
func openFor(a *Account, open func() (*ends, error)) (*ends, error) {
	if a == nil {
		return open()
	}
	var e *ends
	err := asuser.Do(asuser.Cred{UID: a.UID, GID: a.GID, Groups: a.Groups}, func() (err error) {
		e, err = open()
		return err
	})
	switch {
	case err == nil:
		return e, nil
	case e == nil:
		return open()
	}
	e.closeAll()
	return nil, err
}
