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

func getCommand() *cobra.Command {
	var q cli.Query
	c := &cobra.Command{
		Use:       "get KIND",
		Short:     "List nodes, gpus, workloads or decisions",
		Example:   "  evenkeel get gpus --sort-by headroom_celsius\n  evenkeel get decisions -o json\n  evenkeel get gpus -l node=a-1,state=ok -w",
		ValidArgs: cli.KindNames(),
		Args:      command.Exactly(1, "one kind: nodes, gpus, workloads or decisions"),
	}
	server := serverFlag(c)
	c.Flags().StringVarP(&q.Output, "output", "o", "table", "table, wide, json or yaml")
	c.Flags().StringVarP(&q.Selector, "selector", "l", "", "keep items by field: node=a-1,state!=ok")
	c.Flags().StringVar(&q.SortBy, "sort-by", "", "field to sort by, such as headroom_celsius")
	c.Flags().BoolVarP(&q.Watch, "watch", "w", false, "print again on every change")
	c.RunE = func(c *cobra.Command, args []string) error {
		q.Kind = args[0]
		return cli.NewClient(*server).Print(c.Context(), c.OutOrStdout(), q)
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
		return cli.NewClient(*server).Explain(c.Context(), c.OutOrStdout(), args[0], *output)
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
		return cli.NewClient(*server).Plan(c.Context(), c.OutOrStdout(), *output)
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
			kind, err := config.Check(args[0], data)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: a valid %s\n", args[0], kind)
			return nil
		},
	}, checkPolicyCommand())
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
