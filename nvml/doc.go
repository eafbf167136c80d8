// Package nvml reaches real GPUs through NVIDIA's management library. It is
// the only importer of its Go binding.
//
// In: libnvidia-ml.so.1, found by the loader or named by a path. Out: Source,
// what the exporter reads; Writer, what the agent may change. Two types, opened
// separately: a process that only reads never holds the means to write.
// Never: a cached reading, a sentinel passed on as a number, a call to a
// function that the library lacks (the loader would end the process).
//
// Source is also a Notifier: it registers devices for events on goroutines of
// their own, because that touches them, and waits on a thread of its own.
//
// Guarantees: each function is looked up before it is called, again after each
// Open; a failed Open leaves nothing loaded, so a library installed or upgraded
// later is found without a restart; every driver code becomes an
// exporter.Fault; a GPU that is lost keeps the UUID it was known by; nothing is
// closed or freed under a call that has not returned.
//
// The library's symbols are global to a process, so one process has one
// library: to name a second is an error. Link with -z lazy. Without cgo, or not
// on Linux, the types are there and Open says why it cannot work.
//
// To add a value: its function in symbols.go, a method in device.go or the file
// of its topic. A kind of event is a line in events.go.
package nvml
