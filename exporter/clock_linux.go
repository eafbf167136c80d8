package exporter

import "syscall"

// clockSynchronized asks the kernel whether its clock follows a source.
func clockSynchronized() bool {
	const (
		timeError = 5
		unsynced  = 0x40
	)
	var t syscall.Timex
	state, err := syscall.Adjtimex(&t)
	return err == nil && state != timeError && t.Status&unsynced == 0
}
