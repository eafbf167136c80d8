package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Handle is a hold on one process, whatever becomes of its pid.
type Handle struct {
	ID
	fd int
}

// Open takes hold of a process and then reads it, so that what it returns is of
// the process held. ErrGone says that it has ended or that the pid is another's.
func (p Proc) Open(id ID) (*Handle, Info, error) {
	fd, err := unix.PidfdOpen(id.PID, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil, Info{}, fmt.Errorf("process %s: %w", id, ErrGone)
	case errors.Is(err, unix.ENOSYS):
		return nil, Info{}, errors.New("this kernel has no pidfd_open, so a signal could reach the wrong process; Linux 5.3 or later is needed")
	case err != nil:
		return nil, Info{}, fmt.Errorf("process %s: pidfd_open: %w", id, err)
	}
	h := &Handle{id, fd}
	i, err := p.Read(id.PID)
	if err == nil && i.ID != id {
		err = fmt.Errorf("process %s: the pid is now %s's: %w", id, i.ID, ErrGone)
	}
	if err != nil {
		h.Close()
		return nil, Info{}, err
	}
	return h, i, nil
}

// Signal sends a signal to the process held, or returns ErrGone.
func (h *Handle) Signal(s syscall.Signal) error {
	err := unix.PidfdSendSignal(h.fd, s, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %s: %w", h.ID, ErrGone)
	}
	if err != nil {
		return fmt.Errorf("process %s: signal %s: %w", h.ID, s, err)
	}
	return nil
}

// Runs says whether the process held still runs, whoever's it is. It costs one
// call and allocates nothing.
func (h *Handle) Runs() bool {
	fds := [1]unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds[:], 0)
		if !errors.Is(err, unix.EINTR) {
			return n == 0 && err == nil
		}
	}
}

// Close lets go.
func (h *Handle) Close() { _ = unix.Close(h.fd) }

// Ended waits until one of the processes held has ended, at most so long, and
// returns those that have.
func Ended(hs []*Handle, wait time.Duration) []*Handle {
	fds := make([]unix.PollFd, len(hs))
	for i, h := range hs {
		fds[i] = unix.PollFd{Fd: int32(h.fd), Events: unix.POLLIN}
	}
	if len(fds) == 0 {
		time.Sleep(wait)
		return nil
	}
	for end := time.Now().Add(wait); ; {
		n, err := unix.Poll(fds, int(max(time.Until(end), 0).Milliseconds()))
		if n == 0 && err == nil || err != nil && !errors.Is(err, unix.EINTR) {
			return nil
		}
		if n > 0 {
			break
		}
	}
	var ended []*Handle
	for i, h := range hs {
		if fds[i].Revents != 0 {
			ended = append(ended, h)
		}
	}
	return ended
}

// Signal sends a signal to a process held.
func (p Proc) Signal(h *Handle, s syscall.Signal) error { return h.Signal(s) }

// Say writes a line on the controlling terminal of a process, by a file that the
// process has open there: the path that the terminal's number stands for may be
// another one in this process's view. It never waits for the terminal.
func (p Proc) Say(i Info, line string) error {
	if i.TTY == 0 {
		return fmt.Errorf("process %s has no controlling terminal", i.ID)
	}
	major, minor := uint32(i.TTY)>>8&0xfff, uint32(i.TTY)&0xff|uint32(i.TTY)>>12&0xfff00
	for n := range 3 {
		file := p.path(strconv.Itoa(i.PID), "fd", strconv.Itoa(n))
		// To open anything else could do something: wait for a server of files that
		// is away, say. The name alone asks nobody.
		if name, err := os.Readlink(file); err != nil || !strings.HasPrefix(name, "/dev/") {
			continue
		}
		fd, err := unix.Open(file, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		// Judged after it is open: the process may have put another file there,
		// one that this process may write to and it may not.
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		is := err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && unix.Major(st.Rdev) == major && unix.Minor(st.Rdev) == minor
		if is {
			_, err = unix.Write(fd, []byte(line))
		}
		_ = unix.Close(fd)
		if is && err != nil {
			return fmt.Errorf("terminal of process %s: %w", i.ID, err)
		}
		if is {
			return nil
		}
	}
	return fmt.Errorf("process %s has its controlling terminal not open", i.ID)
}
