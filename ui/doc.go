// Package ui is the page at / and the HTTP API under /api/evenkeel/v1/: what
// a person on call, the command line and other programs see of the fleet and
// of its decisions. openapi.yaml describes the API; web/ holds the sources of
// the page and dist/ its bundle.
//
// In: Views of the fleet, the history of a GPU, decisions, and the control
// channel to the leader, through the interfaces in ports.go. Out: JSON, one
// stream of server-sent events, the page. Never: a judgement, a decision, a
// file outside the binary, a host outside the page's own origin.
//
// Guarantees: a value that is not known is absent, never zero; a value that
// is no longer fresh says so; every error says what to do; a slow reader of
// the stream costs a bounded amount of memory and is let go; the page shows no
// value as live once the stream has stopped.
//
// To add a field: the struct in model.go, the schema in openapi.yaml; a test
// compares them both ways. To add a route: the list in handler.go and a path
// in openapi.yaml.
package ui
