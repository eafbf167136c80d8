package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/evenkeel-gpu/evenkeel/app"
	"github.com/evenkeel-gpu/evenkeel/app/command"
)

const worldFile = "/dev/shm/evenkeel-world"

func simCommand() *cobra.Command {
	c := &cobra.Command{Use: "sim", Short: "The simulated world"}
	c.AddCommand(simServeCommand(), simClaimCommand(), simClaimsCommand())
	return c
}

func simServeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "serve",
		Short: "Drive the NVML stand-in: one node of a scenario in shared memory",
		Long: "Drive the NVML stand-in: one node of a scenario in shared memory, in real time.\n\n" +
			"With --events a line on standard input is an event in the words of a scenario,\n" +
			"such as {gpu: a-1/0, cooling: 2}, and happens at once; {gpu: a-1/0, cooling: 2,\n" +
			"over: true} ends it.",
		Example: "  make standin\n  evenkeel sim serve --scenario hot-row --node a-1 --shm /dev/shm/world &\n  export LD_LIBRARY_PATH=build/standin EVENKEEL_STANDIN_SHM=/dev/shm/world\n  evenkeel-node doctor",
		Args:    command.Exactly(0, "no arguments"),
	}
	scenario := c.Flags().String("scenario", "hot-row", "a scenario's name or file")
	node := c.Flags().String("node", "", "node to serve; the first by default")
	shm := c.Flags().String("shm", worldFile, "shared file, on a tmpfs")
	listens := c.Flags().Bool("events", false, "take further events from standard input, one a line")
	c.RunE = func(c *cobra.Command, _ []string) error {
		log, err := command.Logger(c)
		if err != nil {
			return err
		}
		var events io.Reader
		if *listens {
			events = c.InOrStdin()
		}
		return app.ServeSim(c.Context(), *scenario, *node, *shm, events, log)
	}
	return c
}

func simClaimCommand() *cobra.Command {
	o := app.SimClaim{}
	c := &cobra.Command{
		Use:   "claim [flags] [-- COMMAND ARGS]",
		Short: "Make a process use GPUs of a served world, until it ends",
		Long: "Make a process use GPUs of a served world, until it ends. The driver's library\n" +
			"lists it, and its share is load: utilisation, memory, power, heat.\n\n" +
			"With a command it claims for itself and becomes that program.",
		Example: "  evenkeel sim claim --gpu 0 --share 0.8 --memory 40GiB -- sleep 300\n  evenkeel sim claim --gpu 0,1 --share 0.5 --pid 4711",
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.StringVar(&o.Shm, "shm", worldFile, "shared file of `evenkeel sim serve`")
	f.IntSliceVar(&o.GPUs, "gpu", nil, "index of a GPU, or of several: 0,1")
	f.Float64Var(&o.Share, "share", 1, "of each GPU, above 0 and at most 1")
	f.StringVar(&o.Memory, "memory", "1GiB", "device memory on each GPU")
	f.IntVar(&o.PID, "pid", 0, "a running process, instead of a command")
	c.RunE = func(c *cobra.Command, args []string) error {
		o.Command = args
		return app.ClaimSim(o, c.OutOrStdout())
	}
	return c
}

func simClaimsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "claims",
		Short: "List the processes that use GPUs of a served world",
		Args:  command.Exactly(0, "no arguments"),
	}
	shm := c.Flags().String("shm", worldFile, "shared file of `evenkeel sim serve`")
	c.RunE = func(c *cobra.Command, _ []string) error { return app.SimClaims(*shm, c.OutOrStdout()) }
	return c
}
