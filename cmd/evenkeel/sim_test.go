//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// asProgram makes this test binary the program itself, for what replaces the
// process that it runs in.
const asProgram = "EVENKEEL_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// answer runs a command to its end.
func answer(args string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = run(context.Background(), strings.Fields(args), &o, &e)
	return code, o.String(), e.String()
}

// TestClaim: a served world, a program that claims GPUs of it and is itself
// afterwards, another process that is claimed for, and their ends.
func TestClaim(t *testing.T) {
	shm := filepath.Join(t.TempDir(), "world")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan int, 1)
	go func() {
		var log bytes.Buffer
		served <- run(ctx, []string{"sim", "serve", "--scenario", "blocked-air", "--shm", shm, "--log-level", "error"}, &log, &log)
	}()
	claims := func(pleases func(code int, out string) bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			code, out, errOut := answer("sim claims --shm " + shm)
			if pleases(code, out) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("after 20 s: %d\n%s%s", code, out, errOut)
			}
		}
	}
	claims(func(code int, _ string) bool { return code == 0 })
	start := func(name string, args ...string) (pid int, end func()) {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		end = func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		t.Cleanup(end)
		return cmd.Process.Pid, end
	}
	job, endJob := start(os.Args[0], strings.Fields("sim claim --shm "+shm+" --gpu 0,2 --share 0.8 --memory 20GiB -- sleep 600")...)
	other, endOther := start("sleep", "600")
	if code, out, errOut := answer(fmt.Sprintf("sim claim --shm %s --gpu 3 --share 0.25 --memory 512MiB --pid %d", shm, other)); code != 0 || !strings.Contains(out, fmt.Sprintf("process %d claims 0.25", other)) {
		t.Fatalf("claim for a process: %d, %s%s", code, out, errOut)
	}
	want := fmt.Sprintf("0 %[1]d sleep 80%% 20.0 GiB 2 %[1]d sleep 80%% 20.0 GiB 3 %d sleep 25%% 0.5 GiB", job, other)
	claims(func(code int, out string) bool {
		_, rows, _ := strings.Cut(out, "\n")
		return code == 0 && strings.Join(strings.Fields(rows), " ") == want
	})
	endJob()
	endOther()
	claims(func(code int, out string) bool { return code == 0 && strings.Count(out, "\n") == 1 })
	for args, want := range map[string]string{
		fmt.Sprintf("sim claim --shm %s --gpu 4 --pid %d", shm, os.Getpid()):           "GPU 4 is not there",
		fmt.Sprintf("sim claim --shm %s --gpu 0 --pid %d", shm, job):                   "is not running",
		fmt.Sprintf("sim claim --shm %s --gpu 0 --share 2 --pid %d", shm, os.Getpid()): "share of 2",
	} {
		if code, out, errOut := answer(args); code != 1 || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%s: %d, %s%s, want %q", args, code, out, errOut, want)
		}
	}
	cancel()
	if code := <-served; code != 0 {
		t.Errorf("sim serve ended with %d", code)
	}
}
