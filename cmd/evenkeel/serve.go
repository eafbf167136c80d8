package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/evenkeel-gpu/evenkeel/app"
	"github.com/evenkeel-gpu/evenkeel/app/command"
	"github.com/evenkeel-gpu/evenkeel/config"
)

func upCommand() *cobra.Command {
	o := app.UpOptions{}
	c := &cobra.Command{
		Use:   "up",
		Short: "Run everything in one process, simulated where there is no GPU",
		Long: "Run bus, collector, rebalancer and page in one process.\n\n" +
			"--source sim, the default without a GPU driver, runs the real exporters and\n" +
			"agents over a simulated fleet and acts on it.\n" +
			"--source nvml, the default with one, starts `evenkeel-node export` beside it\n" +
			"for this machine's GPUs; it recommends and never acts.",
		Args: command.Exactly(0, "no arguments"),
	}
	f := c.Flags()
	f.StringVar(&o.Source, "source", "", "sim or nvml; nvml if this machine has a GPU driver")
	f.StringVar(&o.Scenario, "scenario", "hot-row", "with --source sim: a scenario's name or file")
	f.Uint64Var(&o.Seed, "seed", 0, "with --source sim: another world of the same scenario")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:9837", "address of page, API and /metrics")
	f.StringVar(&o.Data, "data", "", "folder that keeps the journal; a fresh temporary one by default")
	f.StringVar(&o.Inventory, "inventory", "", "file with racks, domains, tenants, budgets and the GPUs that nodes should have")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if !slices.Contains([]string{"", "sim", "nvml"}, o.Source) {
			return command.Usagef("--source %q: want sim or nvml", o.Source)
		}
		// What dozens of simulated nodes say of their normal life is not for the
		// terminal unless it is asked for.
		if !c.Flags().Changed("log-level") {
			if err := c.Flags().Set("log-level", "warn"); err != nil {
				return err
			}
		}
		log, err := command.Logger(c)
		if err != nil {
			return err
		}
		o.LogLevel, o.Out = c.Flag("log-level").Value.String(), c.OutOrStdout()
		return app.Up(c.Context(), o, log)
	}
	return c
}

func collectorCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "collector",
		Short: "Judge every node's frames once; serve page, API and /metrics",
		Args:  command.Exactly(0, "no arguments"),
	}
	file := c.Flags().StringP("config", "c", "/etc/evenkeel/collector.yaml", "configuration (kind Collector)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		log, err := command.Logger(c)
		if err != nil {
			return err
		}
		cfg := config.DefaultCollector()
		if err := config.Load(*file, "Collector", cfg); err != nil {
			return err
		}
		return app.Collector(c.Context(), cfg, *file, log)
	}
	return c
}

func rebalancerCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "rebalancer",
		Short: "Decide, act through the agents, check what it did, say why",
		Args:  command.Exactly(0, "no arguments"),
	}
	file := c.Flags().StringP("config", "c", "/etc/evenkeel/rebalancer.yaml", "configuration (kind Rebalancer)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		log, err := command.Logger(c)
		if err != nil {
			return err
		}
		cfg := config.DefaultRebalancer()
		if err := config.Load(*file, "Rebalancer", cfg); err != nil {
			return err
		}
		return app.Rebalancer(c.Context(), cfg, log)
	}
	return c
}

func checkPolicyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "policy FILE | --defaults",
		Short: "Check a policy file, or print the embedded ones",
	}
	defaults := c.Flags().Bool("defaults", false, "print the embedded policies")
	c.Args = func(_ *cobra.Command, args []string) error {
		if (len(args) == 1) == *defaults || len(args) > 1 {
			return command.Usagef("want one file, or --defaults")
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if *defaults {
			_, err := c.OutOrStdout().Write(app.DefaultPolicies())
			return err
		}
		if _, err := os.Stat(args[0]); err != nil {
			return err
		}
		spec, err := app.ReadPolicy(args[0])
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "%s: a valid %s policy\n", args[0], spec.Type)
		return nil
	}
	return c
}
