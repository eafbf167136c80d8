package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/evenkeel-gpu/evenkeel/app"
	"github.com/evenkeel-gpu/evenkeel/app/command"
	"github.com/evenkeel-gpu/evenkeel/bench"
)

func benchCommand() *cobra.Command {
	o := app.BenchOptions{Run: bench.Defaults()}
	c := &cobra.Command{
		Use:   "bench",
		Short: "Load a collector with the frames of many nodes, and measure",
		Long: "Send the frames of many nodes, listen for what the collector makes of them, and\n" +
			"report: what was lost, late or doubled, how long it took, what it cost.\n\n" +
			"Without --nats a bus and a collector are started for the run, each as a process\n" +
			"of its own. With it the nodes appear on that bus as " + o.Run.Prefix + "00000 and so on; name\n" +
			"the collector by --collector to have its counters compared with what was sent.",
		Example: "  evenkeel bench --nodes 1000 --duration 30s\n" +
			"  evenkeel bench --nodes 200 --faults lost=0.01,dup=0.01,restart=0.001\n" +
			"  evenkeel bench --nodes 1000 --hot 10\n" +
			"  evenkeel bench --nats nats://10.0.0.5 --collector 10.0.0.5:9837 \\\n    --expect max-loss=0,p99=1s",
		Args: command.Exactly(0, "no arguments"),
	}
	f := c.Flags()
	f.StringVar(&o.URL, "nats", "", "bus to load; one of its own by default")
	f.StringVar(&o.Run.Collector, "collector", "", "with --nats: the collector's HTTP address, to compare with its counters")
	f.StringVar(&o.Run.Credentials, "creds", "", "with --nats: folder with USER.creds, USER.nk or USER.password of each x.<node>, and of reader")
	f.StringVar(&o.CAFile, "ca", "", "with --nats: who signs the bus's certificate, PEM")
	f.StringVar(&o.CertFile, "cert", "", "with --nats: certificate that the nodes show, PEM")
	f.StringVar(&o.KeyFile, "key", "", "its key, PEM")
	f.IntVar(&o.Run.Nodes, "nodes", o.Run.Nodes, "nodes that send")
	f.IntVar(&o.Run.GPUs, "gpus", o.Run.GPUs, "GPUs of each node")
	f.StringVar(&o.Run.Model, "model", o.Run.Model, "product of the GPUs")
	f.StringVar(&o.Run.Prefix, "prefix", o.Run.Prefix, "of the nodes' names")
	f.StringVar(&o.Run.Cluster, "cluster", o.Run.Cluster, "cluster that the nodes name")
	f.DurationVar(&o.Run.Period, "rate", o.Run.Period, "time from a node's frame to its next")
	f.DurationVar(&o.Run.Duration, "duration", o.Run.Duration, "how long is measured")
	f.DurationVar(&o.Run.Warmup, "warmup", o.Run.Warmup, "how long is sent before it")
	f.IntVar(&o.Run.Scrapes, "scrapes", 0, "scrape the fleet's series so often at the end")
	f.IntVar(&o.Hot, "hot", 0, "without --nats: nodes that get hot and are capped by a rebalancer and agents; how long that takes is reported")
	connections := f.String("connections", "", "a number, or shared for a single one; one for each node by default")
	faults := f.String("faults", "", "shares of frames with faults: "+strings.Join(bench.FaultNames(), ", "))
	f.Float64Var(&o.Run.Events, "events", o.Run.Events, "share of frames that come with an event")
	f.Uint64Var(&o.Run.Seed, "seed", o.Run.Seed, "another world and other faults")
	expect := f.String("expect", "", "bounds that make it fail: "+strings.Join(bench.ExpectationNames(), ", "))
	f.StringVarP(&o.Output, "output", "o", "text", "text, json, or row: a row of a Markdown table")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if !slices.Contains([]string{"text", "json", "row"}, o.Output) {
			return command.Usagef("--output %q: want text, json or row", o.Output)
		}
		var err error
		if o.Run.Connections, err = parseConnections(*connections); err != nil {
			return err
		}
		if o.Run.Faults, err = bench.ParseFaults(*faults); err != nil {
			return command.Usagef("--faults: %w", err)
		}
		if o.Run.Expect, err = bench.ParseExpectations(*expect); err != nil {
			return command.Usagef("--expect: %w", err)
		}
		if err := o.Check(); err != nil {
			return command.Usagef("%w", err)
		}
		if !c.Flags().Changed("log-level") {
			if err := c.Flags().Set("log-level", "warn"); err != nil {
				return err
			}
		}
		log, err := command.Logger(c)
		if err != nil {
			return err
		}
		return app.Bench(c.Context(), o, c.OutOrStdout(), log)
	}
	c.AddCommand(benchBusCommand())
	return c
}

func parseConnections(text string) (int, error) {
	switch text {
	case "":
		return 0, nil
	case "shared":
		return 1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, command.Usagef("--connections %q: want a number, or shared", text)
	}
	return n, nil
}

// benchBusCommand is the bus that a run starts for itself.
func benchBusCommand() *cobra.Command {
	c := &cobra.Command{Use: "bus", Short: "The bus of a run", Hidden: true, Args: command.Exactly(0, "no arguments")}
	store := c.Flags().String("store", "", "folder of the streams")
	prefix := c.Flags().String("prefix", "", "of the nodes' names")
	nodes := c.Flags().Int("nodes", 0, "nodes that may connect; none: anybody may")
	agents := c.Flags().Int("agents", 0, "of them, how many have an agent")
	c.RunE = func(c *cobra.Command, _ []string) error {
		log, err := command.Logger(c)
		if err != nil {
			return err
		}
		return app.BenchBus(c.Context(), *store, *prefix, *nodes, *agents, c.OutOrStdout(), log)
	}
	return c
}
