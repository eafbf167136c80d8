package exporter

import (
	"context"
	"fmt"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// heldGPU is a GPU whose processes could be listed.
type heldGPU struct {
	topic, uuid string
	processes   []Process
}

// holders says who holds which GPU, and why the agent may act on him or not.
func (d *doctor) holders(ctx context.Context, members Members) {
	if len(d.held) == 0 {
		return
	}
	if members != nil {
		d.attribute(ctx, members)
	}
	anybody := false
	for _, g := range d.held {
		named := Holders{}
		if members != nil {
			named = members.Of(g.uuid)
		}
		for i, m := range named.Members {
			d.holder(g.topic, m, named.Why[i])
		}
		if n := len(g.processes); n > 0 {
			anybody = true
			if members == nil {
				d.say(Fine, g.topic, "held by %d processes", n)
			} else if left := n - len(named.Processes); left > 0 {
				d.say(Fine, g.topic, "held by %d processes more, which have ended meanwhile or are beyond what a frame names", left)
			}
		}
	}
	if !anybody {
		d.say(Fine, "processes", "no process holds a GPU")
	}
}

// attribute finds out whose the processes are.
func (d *doctor) attribute(ctx context.Context, members Members) {
	ctx, cancel := context.WithTimeout(ctx, doctorWait)
	defer cancel()
	go members.Run(ctx)
	for _, g := range d.held {
		members.Listed(g.uuid, g.processes)
	}
	members.Settle(ctx)
	if err := members.Err(); err != nil {
		d.say(Warning, "processes", "it is not known whose all of them are: %v", err)
	}
}

func (d *doctor) holder(topic string, m *telemetry.Member, why string) {
	pid, _, _ := strings.Cut(m.GetId(), "@")
	who := pid
	if m.GetName() != "" {
		who += fmt.Sprintf(" (%s) of %s", m.GetName(), m.GetOwner())
	}
	if bytes := m.GetMemoryBytes(); bytes > 0 {
		who += fmt.Sprintf(", %.1f GiB", float64(bytes)/(1<<30))
	}
	if m.GetWorkload() == "" {
		d.say(Fine, topic, "held by %s; not the agent's to act on: %s", who, why)
		return
	}
	d.say(Fine, topic, "held by %s, part of %s; the agent's to act on by %s", who, m.GetWorkload(), why)
}
