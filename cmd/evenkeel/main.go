// Command evenkeel keeps a GPU fleet on an even keel: collector, rebalancer,
// simulator and the command line.
//
// In: arguments. Out: exit code 0, 1 for a failure, 2 for a wrong call.
// Never: logic; a table of commands.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(run(os.Args[1:])) }

// usageError is a wrong call: exit code 2.
type usageError struct{ error }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := command()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "evenkeel: %v\n", err)
		return 2
	}
	fmt.Fprintf(os.Stderr, "evenkeel: %v\n", err)
	return 1
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "evenkeel",
		Short:         "Keeps a GPU fleet on an even keel",
		Long:          "Evenkeel watches every GPU of a fleet every second and takes the cheapest act that keeps it within its marks.\nStart with `evenkeel up`: without a GPU it simulates a fleet.",
		SilenceErrors: true,
		SilenceUsage:  true,
		// A word that is no command is a wrong call, not a failure.
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("no command %q; see `evenkeel --help`", args[0])}
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().String("log-level", "info", "debug, info, warn or error")
	root.AddCommand(
		upCommand(),
		collectorCommand(),
		rebalancerCommand(),
		getCommand(),
		explainCommand(),
		planCommand(),
		simCommand(),
		checkCommand(),
		versionCommand(),
	)
	return root
}

// logger writes to standard error; standard output belongs to answers.
func logger(c *cobra.Command) (*slog.Logger, error) {
	text, err := c.Flags().GetString("log-level")
	if err != nil {
		return nil, err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level %q: want debug, info, warn or error", text)}
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})), nil
}

// exactly wraps a cobra argument check into a wrong call.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("want %s", what)}
		}
		return nil
	}
}
