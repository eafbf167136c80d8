//go:build crashpoints

package crashpoint

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// What a test sets: NAME, or NAME#N for the N-th passage in the life of the
// process.
const (
	CrashAt = "EVENKEEL_CRASH_AT"
	StopAt  = "EVENKEEL_STOP_AT"
)

// Points are the places of one process at which it can be told to end.
type Points struct {
	names       []string
	crash, stop *place

	mu     sync.Mutex
	passed map[string]int
}

// place is the n-th passage of a point.
type place struct {
	name string
	n    int
}

// New reads what is asked for. A place that the process does not have is an
// error that lists those it has.
func New(names []string) (*Points, error) {
	p := &Points{names: names, passed: map[string]int{}}
	var err error
	if p.crash, err = p.asked(CrashAt); err == nil {
		p.stop, err = p.asked(StopAt)
	}
	return p, err
}

func (p *Points) asked(variable string) (*place, error) {
	text := os.Getenv(variable)
	if text == "" {
		return nil, nil
	}
	name, count, counted := strings.Cut(text, "#")
	n := 1
	if counted {
		var err error
		if n, err = strconv.Atoi(count); err != nil || n < 1 {
			return nil, fmt.Errorf("%s=%s: want NAME or NAME#N with N from 1", variable, text)
		}
	}
	if !slices.Contains(p.names, name) {
		return nil, fmt.Errorf("%s=%s: this process has no such point; it has %s", variable, text, strings.Join(p.names, " "))
	}
	return &place{name, n}, nil
}

// Pass is a passage of a point. It does not return from the one at which the
// process is to end, and from the one at which it is to stop only once somebody
// has continued it; stopped is then true.
func (p *Points) Pass(name string) (stopped bool) {
	if !slices.Contains(p.names, name) {
		panic("crash point " + name + " is not in the list of its process")
	}
	p.mu.Lock()
	p.passed[name]++
	n := p.passed[name]
	p.mu.Unlock()
	switch {
	case p.crash != nil && *p.crash == place{name, n}:
		fmt.Fprintf(os.Stderr, "crash point %s#%d: killed\n", name, n)
		send(syscall.SIGKILL)
		select {} // what is beyond the point never happens
	case p.stop != nil && *p.stop == place{name, n}:
		fmt.Fprintf(os.Stderr, "crash point %s#%d: stopped\n", name, n)
		send(syscall.SIGSTOP)
		return true
	}
	return false
}

// send gives this very thread the signal, so that it goes no further; the
// kernel ends or stops the others with it.
func send(signal syscall.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = syscall.Tgkill(os.Getpid(), syscall.Gettid(), signal)
}
