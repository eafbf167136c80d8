//go:build !linux

package app

import "os/exec"

func runChild(cmd *exec.Cmd) error { return cmd.Run() }
