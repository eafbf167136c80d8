package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/evenkeel-gpu/evenkeel/app"
	"github.com/evenkeel-gpu/evenkeel/app/cli"
	"github.com/evenkeel-gpu/evenkeel/app/command"
	"github.com/evenkeel-gpu/evenkeel/config"
)

func serverFlag(c *cobra.Command) *string {
	server := os.Getenv("EVENKEEL_SERVER")
	if server == "" {
		server = "127.0.0.1:9837"
	}
	return c.Flags().String("server", server, "collector to ask; EVENKEEL_SERVER sets the default")
}

// client asks a collector, with its notes on standard error.
func client(c *cobra.Command, server string) *cli.Client {
	out := cli.NewClient(server)
	out.Notes = c.ErrOrStderr()
	return out
}

func getCommand() *cobra.Command {
	var q cli.Query
	c := &cobra.Command{
		Use:   "get KIND",
		Short: "List nodes, gpus, workloads, decisions or alerts",
		Long: "List nodes, gpus, workloads, decisions or alerts.\n\n" +
			"Fields are those of -o json, nested ones with a dot: idle.cause, labels.node.\n" +
			"With -w and -o json each item that is new or changed is a line of its own.",
		Example:   "  evenkeel get gpus --sort-by headroom_celsius\n  evenkeel get decisions -o json\n  evenkeel get gpus -l node=a-1,state!=ok\n  evenkeel get alerts -w",
		ValidArgs: cli.KindNames(),
		Args:      command.Exactly(1, "one kind: nodes, gpus, workloads, decisions or alerts"),
	}
	server := serverFlag(c)
	c.Flags().StringVarP(&q.Output, "output", "o", "table", "table, wide, json or yaml")
	c.Flags().StringVarP(&q.Selector, "selector", "l", "", "keep items by field: node=a-1,state!=ok")
	c.Flags().StringVar(&q.SortBy, "sort-by", "", "field to sort by, such as headroom_celsius; =-FIELD sorts down")
	c.Flags().IntVar(&q.Limit, "limit", 100, "the most decisions to list; 0 for all")
	c.Flags().BoolVarP(&q.Watch, "watch", "w", false, "then print what is new or changes")
	c.RunE = func(c *cobra.Command, args []string) error {
		q.Kind = args[0]
		return client(c, *server).Print(c.Context(), c.OutOrStdout(), q)
	}
	return c
}

func describeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "describe KIND NAME",
		Short:   "Tell all of one node, gpu, workload or decision, in words",
		Example: "  evenkeel describe gpu a-1/0\n  evenkeel describe node a-1\n  evenkeel describe workload slurm:4711\n  evenkeel describe decision d-000001",
		Args:    command.Exactly(2, "a kind (node, gpu, workload or decision) and a name as `get` lists it; a GPU is also node/index"),
	}
	server := serverFlag(c)
	c.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return cli.Describable(), cobra.ShellCompDirectiveNoFileComp
		case 1:
			return client(c, *server).Names(c.Context(), args[0]), cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return client(c, *server).Describe(c.Context(), c.OutOrStdout(), args[0], args[1])
	}
	return c
}

func explainCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "explain ID | workload/REF | nothing",
		Short:   "Say why: of a decision, of a workload, or of the present quiet",
		Example: "  evenkeel explain d-000001\n  evenkeel explain workload/k8s:research/Job/llm-pretrain\n  evenkeel explain nothing",
		Args:    command.Exactly(1, "one of: a decision's id, workload/REF, nothing"),
	}
	server := serverFlag(c)
	output := c.Flags().StringP("output", "o", "text", "text, json or yaml (decisions)")
	c.RunE = func(c *cobra.Command, args []string) error {
		return client(c, *server).Explain(c.Context(), c.OutOrStdout(), args[0], *output)
	}
	return c
}

func planCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "plan",
		Short: "Show what the rebalancer would do now, without doing it",
		Args:  command.Exactly(0, "no arguments"),
	}
	server := serverFlag(c)
	output := c.Flags().StringP("output", "o", "text", "text, json or yaml")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return client(c, *server).Plan(c.Context(), c.OutOrStdout(), *output)
	}
	return c
}

func checkCommand() *cobra.Command {
	c := &cobra.Command{Use: "check", Short: "Check files before use"}
	c.AddCommand(&cobra.Command{
		Use:   "config FILE",
		Short: "Check the configuration of any process",
		Args:  command.Exactly(1, "one file"),
		RunE: func(c *cobra.Command, args []string) error {
			data, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			kind, file, err := config.Check(args[0], data)
			if err != nil {
				return err
			}
			if c, ok := file.(*config.Collector); ok {
				if err := app.CheckCollector(c, args[0]); err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: a valid %s\n", args[0], kind)
			return nil
		},
	}, checkPolicyCommand(), checkAlertsCommand())
	return c
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  command.Exactly(0, "no arguments"),
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintf(c.OutOrStdout(), "evenkeel %s %s %s/%s\n", app.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}
