// Package ui is the page at / and the HTTP API under /api/evenkeel/v1/: what
// a person on call, the command line and other programs see of the fleet and
// of its decisions. openapi.yaml describes the API; web/ holds the sources of
// the page and dist/ its bundle.
//
// In: Views of the fleet, the past of a GPU and of the store, decisions, what
// rules say, and the control channel to the leader, through the interfaces in
// ports.go. Out: JSON, one stream of server-sent events, the page. Never: a
// judgement, a decision, a file outside the binary, a host outside the page's
// own origin.
//
// Guarantees: a value that is not known is absent, never zero; a value that
// is no longer fresh says so; every error says what to do; changes applied to
// a snapshot of the stream give the next one; a slow reader of it costs others
// nothing, is told and let go; a past has at most 1,000 points and says what of
// it is not there; the page shows no value as live once the stream has stopped.
//
// To add a field: its struct, the schema in openapi.yaml; a test compares them
// both ways. To add a route: the list in handler.go and a path in openapi.yaml.
package ui
