// Package command is what the command lines of both binaries have in common:
// exit codes, wrong calls, help that fits a terminal, the log.
//
// In: a tree of commands, arguments. Out: exit code 0, 1 for a failure, 2 for a
// wrong call; messages on standard error. Never: a command of its own.
//
// To add a command: in the main package of its binary.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
)

// usageError is a wrong call.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// IsUsage says whether an error is that of a wrong call.
func IsUsage(err error) bool {
	var u usageError
	return errors.As(err, &u)
}

// Usagef makes the error of a wrong call.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Exactly accepts n arguments; what says which, for the message.
func Exactly(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return Usagef("want %s", what)
		}
		return nil
	}
}

// Logger writes to standard error, from --log-level up; standard output belongs
// to answers.
func Logger(c *cobra.Command) (*slog.Logger, error) {
	text := c.Flag("log-level").Value.String()
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return nil, Usagef("--log-level %q: want debug, info, warn or error", text)
	}
	return slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: level})), nil
}

// Run executes the tree of commands and returns the exit code.
func Run(ctx context.Context, root *cobra.Command, args []string, out, errOut io.Writer) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.PersistentFlags().String("log-level", "info", "debug, info, warn or error")
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		_, err := Logger(c)
		return err
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.SetUsageFunc(usage)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	strict(root)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(errOut, "%s: %v\n", root.Name(), err)
	var usage usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// usage prints what follows the description in a command's help, at 80 columns.
// A template would do the same and keep every exported method of the program
// alive for it: 4 MB of binary, all of it resident on a node.
func usage(c *cobra.Command) error {
	w := c.OutOrStderr()
	fmt.Fprint(w, "Usage:\n")
	if c.Runnable() && !c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "  %s\n", c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "  %s [command]\n", c.CommandPath())
	}
	if c.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprint(w, "\nAvailable Commands:\n")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() || sub.Name() == "help" {
				fmt.Fprintf(w, "  %-*s %s\n", sub.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	if c.HasAvailableLocalFlags() {
		fmt.Fprintf(w, "\nFlags:\n%s\n", strings.TrimRight(c.LocalFlags().FlagUsagesWrapped(80), " \n"))
	}
	if c.HasAvailableInheritedFlags() {
		fmt.Fprintf(w, "\nGlobal Flags:\n%s\n", strings.TrimRight(c.InheritedFlags().FlagUsagesWrapped(80), " \n"))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\nUse \"%s [command] --help\" for more information about a command.\n", c.CommandPath())
	}
	return nil
}

// strict makes every refused argument a wrong call, and a word that is no
// command too; without any word a group of commands shows its help.
func strict(c *cobra.Command) {
	if c.HasSubCommands() && !c.Runnable() {
		c.Args = func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return Usagef("no command %q; see `%s --help`", args[0], c.CommandPath())
			}
			return nil
		}
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	} else if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			err := check(c, args)
			var usage usageError
			if err == nil || errors.As(err, &usage) {
				return err
			}
			return usageError{err}
		}
	}
	for _, sub := range c.Commands() {
		strict(sub)
	}
}
