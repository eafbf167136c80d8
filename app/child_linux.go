package app

import (
	"os/exec"
	"runtime"
	"syscall"
)

// runChild runs a process that the kernel ends with this one, however this one
// ends.
func runChild(cmd *exec.Cmd) error {
	ended, err := startChild(cmd, false)
	if err != nil {
		return err
	}
	return <-ended
}

// startChild is runChild for those who want to know the process while it runs.
// The kernel minds the thread that started it, so that is kept. One that is apart
// does not get the terminal's ^C: it ends when it is told to.
func startChild(cmd *exec.Cmd, apart bool) (ended <-chan error, err error) {
	begun, end := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: apart}
		err := cmd.Start()
		begun <- err
		if err == nil {
			end <- cmd.Wait()
		}
	}()
	return end, <-begun
}
