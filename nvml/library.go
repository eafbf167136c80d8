//go:build cgo && linux

package nvml

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// The error text is the thread's own, so it is fetched before Go may move on.
static void *ek_open(const char *path, char **why)
{
	void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);

	if (handle == NULL) {
		const char *text = dlerror();
		*why = strdup(text != NULL ? text : "dlopen failed");
	}
	return handle;
}

static int ek_call(void *function) { return ((int (*)(void))function)(); }
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// process is the one library of this process, once it has been bound: its
// symbols are global, and what the loader has bound it never unloads.
var process struct {
	sync.Mutex
	path string
	lib  nvml.Interface
}

// library is one user's hold on the library.
type library struct {
	path  string
	calls atomic.Uint64
	has   atomic.Pointer[table]

	mu       sync.Mutex // serialises open and close
	handle   unsafe.Pointer
	shutdown unsafe.Pointer
	inits    int
	lib      nvml.Interface

	eventWait unsafe.Pointer // the newest version of the function; of has
}

// open looks at the library and initialises it through pointers of its own
// first: an attempt that fails so binds nothing and can be unloaded, and the
// next one finds the library that is installed by then. Only one that works is
// given to the binding.
func (l *library) open() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	handle, err := load(l.path)
	if err != nil {
		return err
	}
	for _, name := range mandatory {
		if find(handle, name) == nil {
			C.dlclose(handle)
			return fmt.Errorf("%s lacks %s, the driver is too old: %w", l.path, name,
				&exporter.DriverError{Call: name, Fault: exporter.MissingSymbol})
		}
	}
	l.calls.Add(1)
	if err := check("nvmlInit_v2", nvml.Return(C.ek_call(find(handle, "nvmlInit_v2")))); err != nil {
		if exporter.FaultOf(err) == exporter.Mismatch && replaced() {
			err = fmt.Errorf("the driver was upgraded under this process, restart it: %w", err)
		}
		C.dlclose(handle)
		return err
	}
	shutdown := find(handle, "nvmlShutdown")
	lib, err := bind(l.path, shutdown)
	if err != nil {
		C.ek_call(shutdown)
		C.dlclose(handle)
		return err
	}
	has := &table{}
	for s, name := range names {
		has[s] = lib.Extensions().LookupSymbol(name) == nil
	}
	if l.handle != nil {
		C.dlclose(l.handle) // the library stays, this was one hold of two
	}
	l.handle, l.shutdown = handle, shutdown
	l.inits++
	if l.lib == nil {
		l.lib = lib
	}
	l.eventWait = nil
	for _, s := range waits {
		if has[s] && l.eventWait == nil {
			l.eventWait = find(handle, names[s])
		}
	}
	l.has.Store(has) // last: it says that lib is there
	return nil
}

// close undoes every open.
func (l *library) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	for ; l.inits > 0; l.inits-- {
		l.calls.Add(1)
		err = errors.Join(err, check("nvmlShutdown", nvml.Return(C.ek_call(l.shutdown))))
	}
	if l.handle != nil {
		C.dlclose(l.handle)
		l.handle = nil
	}
	return err
}

func load(path string) (unsafe.Pointer, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why *C.char
	handle := C.ek_open(name, &why)
	if handle != nil {
		return handle, nil
	}
	defer C.free(unsafe.Pointer(why))
	return nil, fmt.Errorf("%s: %w", C.GoString(why), &exporter.DriverError{Call: "dlopen", Fault: exporter.NoLibrary})
}

func find(handle unsafe.Pointer, name string) unsafe.Pointer {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return C.dlsym(handle, s)
}

// bind gives the library to the binding, once per process. The binding
// initialises it too; that is taken back, so that closing is ours alone.
func bind(path string, shutdown unsafe.Pointer) (nvml.Interface, error) {
	process.Lock()
	defer process.Unlock()
	if process.lib != nil {
		if process.path != path {
			return nil, fmt.Errorf("this process uses %s and cannot load %s too: %w", process.path, path,
				&exporter.DriverError{Call: "dlopen", Fault: exporter.OtherFault})
		}
		return process.lib, nil
	}
	lib := nvml.New(nvml.WithLibraryPath(path))
	if err := check("nvmlInit_v2", lib.Init()); err != nil {
		return nil, err
	}
	C.ek_call(shutdown)
	process.lib, process.path = lib, path
	return lib, nil
}

// replaced says that the library mapped here is no longer the one on disk.
func replaced() bool {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "libnvidia-ml.so") && strings.Contains(line, "(deleted)") {
			return true
		}
	}
	return false
}

// need counts a call, or says that the library lacks it.
func (l *library) need(s symbol) error {
	has := l.has.Load()
	switch {
	case has == nil:
		return errNotOpen
	case !has[s]:
		return lacking[s]
	}
	l.calls.Add(1)
	return nil
}

var errNotOpen error = &exporter.DriverError{Call: "nvmlInit_v2", Fault: exporter.NotInitialized}
