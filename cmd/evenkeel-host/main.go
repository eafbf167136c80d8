// Command evenkeel-host reads what is around the GPUs of a node and tells it to
// the exporter, which starts it.
//
// In: arguments. Out: batches on standard output; exit code 0, 1 for a failure, 2
// for a wrong call. Never: logic; a table of commands.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/evenkeel-gpu/evenkeel/app/command"
	"github.com/evenkeel-gpu/evenkeel/app/host"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	return command.Run(ctx, tree(), args, out, errOut)
}

func tree() *cobra.Command {
	root := &cobra.Command{
		Use: "evenkeel-host", Short: "What is around the GPUs of a node",
		Long: "Reads processors, memory, disks, networks, sensors and mounts with Telegraf's\ninputs, and writes what it finds, a line for each run of a reader.\nevenkeel-node export starts it; by hand it shows what a reader finds.",
	}
	read := &cobra.Command{Use: "read", Short: "Read, and write batches to standard output", Args: command.Exactly(0, "no arguments")}
	file := read.Flags().StringP("config", "c", "", "configuration in TOML; the usual inputs without")
	read.RunE = func(c *cobra.Command, _ []string) error {
		log, err := command.Logger(c)
		if err != nil {
			return err
		}
		return host.Run(c.Context(), *file, c.OutOrStdout(), log)
	}
	check := &cobra.Command{
		Use: "check FILE", Short: "Say what is wrong with a file", Args: command.Exactly(1, "a file"),
		RunE: func(_ *cobra.Command, args []string) error { return host.Check(args[0]) },
	}
	probe := &cobra.Command{
		Use: "probe PATH", Short: "Ask one mount whether it answers", Args: command.Exactly(1, "a path"), Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error { return host.Probe(args[0]) },
	}
	root.AddCommand(read, check, probe)
	return root
}
