// Command evenkeel-node is all that runs on a GPU node: the read-only exporter,
// the opt-in agent, and doctor.
//
// In: arguments. Out: exit code 0, 1 for a failure, 2 for a wrong call.
// Never: logic; a table of commands.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/evenkeel-gpu/evenkeel/app/command"
	"github.com/evenkeel-gpu/evenkeel/app/node"
	"github.com/evenkeel-gpu/evenkeel/config"
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
		Use: "evenkeel-node", Short: "Evenkeel on a GPU node",
		Long: "All that runs on a GPU node: the read-only exporter, the opt-in agent that\ncarries out signed orders, and a doctor for both.",
	}
	root.AddCommand(exportCommand(), agentCommand(), doctorCommand(), versionCommand())
	return root
}

func exportCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "export",
		Short: "Read every GPU each tick; serve /metrics, send frames",
		Long:  "Read every GPU each tick. Needs no privileges and never writes to a device.\nWithout a file it serves /metrics on loopback and sends nothing.",
		Args:  command.Exactly(0, "no arguments"),
	}
	file := c.Flags().StringP("config", "c", "", "configuration (kind Exporter)")
	name := c.Flags().String("node", "", "this node's name; the host name by default")
	listen := c.Flags().String("listen", "", "address of /metrics; 127.0.0.1:9836 by default")
	url := c.Flags().String("nats", "", "bus, such as nats://127.0.0.1:4222")
	compat := c.Flags().String("metrics.compat", "", "dcgm: serve the families of dcgm-exporter's default counter file too")
	once := c.Flags().Bool("once", false, "read one time, print, and end")
	execd := c.Flags().Bool("execd", false, "for Telegraf's inputs.execd: write all values for each line read")
	output := c.Flags().StringP("output", "o", "prom", "with --once: prom or json")
	c.RunE = func(c *cobra.Command, _ []string) error {
		log, err := command.Logger(c)
		if err != nil {
			return err
		}
		cfg := config.DefaultExporter()
		if *file != "" {
			if err := config.Load(*file, "Exporter", cfg); err != nil {
				return err
			}
		}
		// A flag beats the file.
		set(c, "node", &cfg.Node, *name)
		set(c, "listen", &cfg.Listen, *listen)
		set(c, "nats", &cfg.NATS.URL, *url)
		set(c, "metrics.compat", &cfg.MetricsCompat, *compat)
		if err := cfg.Validate(); err != nil {
			return command.Usagef("%w", err)
		}
		if *once && *execd {
			return command.Usagef("--once and --execd exclude each other")
		}
		if *execd {
			return node.Execd(c.Context(), cfg, c.InOrStdin(), c.OutOrStdout(), log)
		}
		if *once {
			if *output != "prom" && *output != "json" {
				return command.Usagef("--output %q: want prom or json", *output)
			}
			return node.ExportOnce(c.Context(), cfg, *output, c.OutOrStdout(), log)
		}
		return node.Export(c.Context(), cfg, log)
	}
	return c
}

// set takes a flag that was given, be it empty.
func set(c *cobra.Command, flag string, to *string, value string) {
	if c.Flags().Changed(flag) {
		*to = value
	}
}

func agentCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "agent",
		Short: "Carry out signed orders within the limits of its file",
		Long:  "Carry out signed orders within the limits of its file. Needs the right to set\npower limits.\n\nThe file must list the rebalancer's public key: an agent that trusts nobody\ndoes not start.",
		Args:  command.Exactly(0, "no arguments"),
	}
	file := c.Flags().StringP("config", "c", "/etc/evenkeel/agent.yaml", "configuration (kind Agent)")
	accept := c.Flags().Bool("accept-epoch", false, "take the next valid order's epoch whatever was seen before; once, after the lease bucket was lost")
	c.RunE = func(c *cobra.Command, _ []string) error {
		log, err := command.Logger(c)
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
		Args:  command.Exactly(0, "no arguments"),
	}
	cfg := config.DefaultExporter()
	f := c.Flags()
	f.StringVar(&cfg.Library, "library", "", "libnvidia-ml.so.1 at another place than the loader's")
	f.StringVar(&cfg.AgentFile, "agent-file", cfg.AgentFile, "the agent's file, for whose processes are ours")
	f.StringVar(&cfg.Node, "node", cfg.Node, "this node's name")
	c.RunE = func(c *cobra.Command, _ []string) error { return node.Doctor(c.Context(), cfg, c.OutOrStdout()) }
	return c
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: command.Exactly(0, "no arguments"),
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintf(c.OutOrStdout(), "evenkeel-node %s %s %s/%s\n", node.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}
