// Command evenkeel-node is all that runs on a GPU node: the read-only exporter,
// the opt-in agent, and doctor.
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
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/evenkeel-gpu/evenkeel/app/node"
	"github.com/evenkeel-gpu/evenkeel/config"
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
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "evenkeel-node: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "evenkeel-node", Short: "Evenkeel on a GPU node", SilenceErrors: true, SilenceUsage: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("no command %q; see `evenkeel-node --help`", args[0])}
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().String("log-level", "info", "debug, info, warn or error")
	root.AddCommand(exportCommand(), agentCommand(), doctorCommand(), versionCommand())
	return root
}

func exportCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "export",
		Short: "Read every GPU each tick: /metrics, and frames to the bus if one is configured",
		Long:  "Read every GPU each tick. Needs no privileges and never writes to a device.\nWithout a file it serves /metrics on loopback and sends nothing.",
		Args:  noArgs,
	}
	file := c.Flags().StringP("config", "c", "", "configuration (kind Exporter)")
	name := c.Flags().String("node", "", "this node's name; the host name by default")
	listen := c.Flags().String("listen", "", "address of /metrics; 127.0.0.1:9836 by default")
	url := c.Flags().String("nats", "", "bus, such as nats://127.0.0.1:4222")
	once := c.Flags().Bool("once", false, "read one time, print, and end")
	output := c.Flags().StringP("output", "o", "prom", "with --once: prom or json")
	c.RunE = func(c *cobra.Command, _ []string) error {
		log, err := logger(c)
		if err != nil {
			return err
		}
		cfg := config.DefaultExporter()
		set(&cfg.Node, *name)
		set(&cfg.Listen, *listen)
		set(&cfg.NATS.URL, *url)
		if err := config.Load(*file, "Exporter", cfg); err != nil {
			return err
		}
		// A flag beats the file.
		set(&cfg.Node, *name)
		set(&cfg.Listen, *listen)
		set(&cfg.NATS.URL, *url)
		if *once {
			if *output != "prom" && *output != "json" {
				return usageError{fmt.Errorf("--output %q: want prom or json", *output)}
			}
			return node.ExportOnce(c.Context(), cfg, *output, c.OutOrStdout(), log)
		}
		return node.Export(c.Context(), cfg, log)
	}
	return c
}

func agentCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "agent",
		Short: "Carry out signed orders within the limits of its file",
		Long:  "Carry out signed orders within the limits of its file. Needs the right to set power limits.\nThe file must list the rebalancer's public key: an agent that trusts nobody does not start.",
		Args:  noArgs,
	}
	file := c.Flags().StringP("config", "c", "/etc/evenkeel/agent.yaml", "configuration (kind Agent)")
	accept := c.Flags().Bool("accept-epoch", false, "take the next valid order's epoch whatever was seen before; once, after the lease bucket was lost")
	c.RunE = func(c *cobra.Command, _ []string) error {
		log, err := logger(c)
		if err != nil {
			return err
		}
		cfg := config.DefaultAgent()
		if err := config.Load(*file, "Agent", cfg); err != nil {
			return err
		}
		cfg.AcceptEpoch = cfg.AcceptEpoch || *accept
		return node.Agent(c.Context(), cfg, log)
	}
	return c
}

func doctorCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what works on this node, what does not, and what to do",
		Args:  noArgs,
	}
	library := c.Flags().String("library", "", "libnvidia-ml.so.1 at another place than the loader's")
	c.RunE = func(c *cobra.Command, _ []string) error { return node.Doctor(c.Context(), *library, c.OutOrStdout()) }
	return c
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintf(c.OutOrStdout(), "evenkeel-node %s %s %s/%s\n", node.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}

func set(to *string, flag string) {
	if flag != "" {
		*to = flag
	}
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("no argument expected, got %q", args[0])}
	}
	return nil
}

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
