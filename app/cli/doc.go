// Package cli is the reading side of the command line: it asks a collector
// over HTTP, follows its stream, and prints tables, JSON, YAML or text.
//
// In: a collector's address, a query. Out: standard output; messages and
// errors go to standard error. Never: another source than the collector's API.
//
// To add a kind to `get`: one entry in kinds.go. To describe one: its function in
// a file of its topic and a case in describe.go.
package cli
