package nvml

import "os"

// LibraryEnv names the library where no option does.
const LibraryEnv = "EVENKEEL_NVML_LIBRARY"

// defaultLibrary is left for the loader to find.
const defaultLibrary = "libnvidia-ml.so.1"

// Option changes how a Source or a Writer is made.
type Option func(*options)

type options struct{ path string }

// WithLibraryPath names the library to load. The empty path is the default.
func WithLibraryPath(path string) Option {
	return func(o *options) { o.path = path }
}

func apply(opts []Option) options {
	var o options
	for _, f := range opts {
		f(&o)
	}
	if o.path == "" {
		o.path = os.Getenv(LibraryEnv)
	}
	if o.path == "" {
		o.path = defaultLibrary
	}
	return o
}
