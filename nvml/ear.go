//go:build cgo && linux

package nvml

/*
#cgo LDFLAGS: -pthread
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

// nvmlEventData_t, and what nvmlEventSetWait returned.
struct ek_notice {
	void *device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
	int code;
};

struct ek_ear {
	int (*wait)(void *set, struct ek_notice *to, unsigned int ms);
	void *set;
	int out;            // the writing end of a pipe, closed at the end
	unsigned int ms;    // of one wait
	unsigned int turns; // grows with each return from the driver
	int stop, done;
};

enum { EK_SUCCESS = 0, EK_TIMEOUT = 10 };

static long ek_ms_since(const struct timespec *then)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - then->tv_sec) * 1000 + (now.tv_nsec - then->tv_nsec) / 1000000;
}

// Waits for events until it is told to stop or the driver fails. A driver that
// returns early with nothing does not make it spin.
static void *ek_hear(void *arg)
{
	const struct timespec pace = {.tv_nsec = 50000000};
	struct ek_ear *ear = arg;
	struct ek_notice notice = {0};

	do {
		struct timespec then;

		clock_gettime(CLOCK_MONOTONIC, &then);
		notice.code = ear->wait(ear->set, &notice, ear->ms);
		__atomic_add_fetch(&ear->turns, 1, __ATOMIC_RELEASE);
		if (notice.code == EK_TIMEOUT) {
			if (ek_ms_since(&then) < 50)
				nanosleep(&pace, NULL);
			continue;
		}
		if (write(ear->out, &notice, sizeof notice) != sizeof notice)
			break;
	} while ((notice.code == EK_SUCCESS || notice.code == EK_TIMEOUT) &&
		 !__atomic_load_n(&ear->stop, __ATOMIC_ACQUIRE));
	close(ear->out);
	__atomic_store_n(&ear->done, 1, __ATOMIC_RELEASE);
	return NULL;
}

// No signal is for this thread: they are the Go runtime's.
static struct ek_ear *ek_listen(void *wait, void *set, int out, unsigned int ms)
{
	struct ek_ear *ear = calloc(1, sizeof *ear);
	sigset_t all, before;
	pthread_t thread;
	int failed;

	if (ear == NULL)
		return NULL;
	ear->wait = (int (*)(void *, struct ek_notice *, unsigned int))wait;
	ear->set = set;
	ear->out = out;
	ear->ms = ms;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = pthread_create(&thread, NULL, ek_hear, ear);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failed) {
		free(ear);
		return NULL;
	}
	pthread_detach(thread);
	return ear;
}

static void ek_stop(struct ek_ear *ear) { __atomic_store_n(&ear->stop, 1, __ATOMIC_RELEASE); }
static int ek_done(struct ek_ear *ear) { return __atomic_load_n(&ear->done, __ATOMIC_ACQUIRE); }
static unsigned int ek_turns(struct ek_ear *ear) { return __atomic_load_n(&ear->turns, __ATOMIC_ACQUIRE); }
*/
import "C"

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"syscall"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

const (
	earSlice = 500 * time.Millisecond // of the driver's wait
	earHung  = 5 * time.Second        // without a return from it
)

// ear waits for the events of a set on a thread that the Go runtime does not
// know. One that it knows, away in the driver all the time, costs it as much as
// all readings together: it looks after such a thread at every tick.
type ear struct {
	l     *library
	c     *C.struct_ek_ear
	in    *os.File
	turns C.uint    // when it was last looked at
	at    time.Time // when they were last others
}

// raised is an event, or why there are no more.
type raised struct {
	device   unsafe.Pointer
	kind     uint64
	data     uint64
	instance uint32
	code     nvml.Return
}

// listen begins to wait for the events of a set.
func (l *library) listen(set nvml.EventSet) (*ear, error) {
	var pipe [2]int
	if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("pipe for events: %w", err)
	}
	if err := syscall.SetNonblock(pipe[0], true); err != nil {
		return nil, fmt.Errorf("pipe for events: %w", err)
	}
	e := &ear{l: l, in: os.NewFile(uintptr(pipe[0]), "events"), at: time.Now()}
	if e.c = C.ek_listen(l.eventWait, handleOf(set), C.int(pipe[1]), C.uint(earSlice.Milliseconds())); e.c == nil {
		return nil, errors.Join(errors.New("no thread for events"), e.in.Close(), syscall.Close(pipe[1]))
	}
	return e, nil
}

// handleOf is the library's pointer in one of the binding's handles.
func handleOf(h any) unsafe.Pointer { return reflect.ValueOf(h).Field(0).UnsafePointer() }

// next returns the next event or the code that ended the waiting, and ok false
// when there is none within wait. Events come whole: they are smaller than what
// a pipe takes at once.
func (e *ear) next(wait time.Duration) (n raised, ok bool, err error) {
	if err := e.in.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return n, false, errNotOpen
	}
	var raw C.struct_ek_notice
	switch _, err := io.ReadFull(e.in, unsafe.Slice((*byte)(unsafe.Pointer(&raw)), unsafe.Sizeof(raw))); {
	case err == nil:
		return raised{raw.device, uint64(raw._type), uint64(raw.data), uint32(raw.gpu_instance), nvml.Return(raw.code)}, true, nil
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return n, false, errNotOpen // it was ended
	}
	if e.returned() > 0 {
		e.at = time.Now()
	} else if time.Since(e.at) > earHung {
		return n, false, &exporter.DriverError{Call: names[symEventWait2], Fault: exporter.Hung}
	}
	return n, false, nil
}

// returned is how often the driver has returned since it was last asked.
func (e *ear) returned() uint64 {
	turns := C.ek_turns(e.c)
	n := turns - e.turns
	e.turns = turns
	e.l.calls.Add(uint64(n))
	return uint64(n)
}

// end tells it to stop, and whether it has within wait.
func (e *ear) end(wait time.Duration) bool {
	C.ek_stop(e.c)
	_ = e.in.Close() // so that it is not stuck in the pipe
	for end := time.Now().Add(wait); !e.done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func (e *ear) done() bool { return C.ek_done(e.c) != 0 }

// free is for one that is done.
func (e *ear) free() { C.free(unsafe.Pointer(e.c)) }

// freed frees one that is done by now, and says whether it was.
func (e *ear) freed() bool {
	done := e.done()
	if done {
		e.free()
	}
	return done
}
