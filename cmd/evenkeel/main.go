// Command evenkeel keeps a GPU fleet on an even keel: collector, rebalancer,
// simulator and the command line.
//
// In: arguments. Out: exit code 0, 1 for a failure, 2 for a wrong call.
// Never: logic; a table of commands.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/evenkeel-gpu/evenkeel/app/command"
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
		Use:   "evenkeel",
		Short: "Keeps a GPU fleet on an even keel",
		Long: "Evenkeel watches every GPU of a fleet every second and takes the cheapest act\n" +
			"that keeps it within its marks.\n\n" +
			"Start with `evenkeel up`: without a GPU it simulates a fleet.",
	}
	root.AddCommand(
		upCommand(),
		collectorCommand(),
		rebalancerCommand(),
		getCommand(),
		describeCommand(),
		explainCommand(),
		planCommand(),
		simCommand(),
		benchCommand(),
		checkCommand(),
		versionCommand(),
	)
	return root
}
