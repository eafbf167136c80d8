//go:build !linux

package app

import "os/exec"

func runChild(cmd *exec.Cmd) error { return cmd.Run() }

func startChild(cmd *exec.Cmd, _ bool) (ended <-chan error, err error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	end := make(chan error, 1)
	go func() { end <- cmd.Wait() }()
	return end, nil
}
