package app

import (
	"os/exec"
	"runtime"
	"syscall"
)

// runChild runs a process that the kernel ends with this one, however this one
// ends. The kernel minds the thread that started it, so that is kept.
func runChild(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd.Run()
}
