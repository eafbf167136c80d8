package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/evenkeel-gpu/evenkeel/alerts"
	"github.com/evenkeel-gpu/evenkeel/app/command"
)

func checkAlertsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "alerts FILE… | --defaults",
		Short: "Check rule files, or print the embedded ones",
		Long: "Check rule files as Prometheus reads them, and that every metric they name is\n" +
			"in the catalogue or recorded by one of them. Give together what is used\n" +
			"together.\n\n" +
			"--defaults prints the embedded rules, for a Prometheus of your own.",
		Example: "  evenkeel check alerts rules/*.yaml\n  evenkeel check alerts --defaults --runbooks https://wiki/gpu > rules.yaml",
	}
	defaults := c.Flags().Bool("defaults", false, "print the embedded rules")
	base := c.Flags().String("runbooks", "", "where the printed rules link to, instead of "+alerts.Runbooks)
	c.Args = func(_ *cobra.Command, args []string) error {
		switch {
		case (len(args) > 0) == *defaults:
			return command.Usagef("want rule files, or --defaults")
		case *base != "" && !*defaults:
			return command.Usagef("--runbooks goes with --defaults")
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if *defaults {
			return alerts.Write(c.OutOrStdout(), *base)
		}
		var files []alerts.File
		for _, name := range args {
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			files = append(files, alerts.File{Name: name, Data: data})
		}
		if err := alerts.Check(files...); err != nil {
			return err
		}
		for _, f := range files {
			fmt.Fprintf(c.OutOrStdout(), "%s: valid rules\n", f.Name)
		}
		return nil
	}
	return c
}
