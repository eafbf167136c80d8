// Package config reads the one YAML file of each process, and the inventory that
// people write down, strictly.
//
// In: a file. Out: a value with its defaults filled in and checked, or errors
// that name file, line and key and say what to do. Never: a silent default for
// a misspelt key, a secret in a log, wiring.
//
// To add a key: the field with its comment, its default in Default…, its check
// in Validate, a line in testdata.
package config
