// Package connect turns the bus part of a configuration into a connection, and
// says on /metrics how it fares.
//
// In: config.NATS, the user of the process. Out: a bus.Conn, its metrics. Never: linked to
// what only one of the binaries may contain.
//
// To add a way to prove a user: a field in config.NATS and its line here.
package connect

import (
	"log/slog"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// Options maps the configuration; user is the role's own unless the file names
// another.
func Options(c config.NATS, user string, log *slog.Logger) (bus.Options, error) {
	password, err := c.Password.Read()
	if err != nil {
		return bus.Options{}, err
	}
	if c.User != "" {
		user = c.User
	}
	o := bus.Options{
		User: user, Password: password, NKeySeedFile: c.NKeyFile, CredsFile: c.CredsFile,
		CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, Log: log,
	}
	if !strings.HasPrefix(user, "x.") && !strings.HasPrefix(user, "a.") {
		// These are few: they need not be spread, and the fleet waits for them.
		o.ReconnectWait, o.ReconnectJitter = time.Second, time.Second
	}
	for u := range strings.SplitSeq(c.URL, ",") {
		if u = strings.TrimSpace(u); u != "" {
			o.URLs = append(o.URLs, u)
		}
	}
	return o, nil
}

// Streams are the streams of this bus as a process makes them.
func Streams(c config.NATS) bus.Streams {
	s := bus.DefaultStreams()
	s.Replicas = max(c.Replicas, 1)
	return s
}

// Bus begins a connection; it is tried until it stands.
func Bus(c config.NATS, user string, log *slog.Logger) (*bus.Conn, error) {
	o, err := Options(c, user, log)
	if err != nil {
		return nil, err
	}
	return bus.Connect(o)
}
