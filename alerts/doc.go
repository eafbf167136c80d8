// Package alerts is the rules that come with Evenkeel, and what is checked of
// anybody's rules before they are used.
//
// In: rule files in the words of Prometheus 2.42, the catalogue.
// Out: the embedded files, for the store and for people's own Prometheus; what
// is wrong with a rule file.
// Never: evaluates, sends.
//
// The rules stand on labels that Evenkeel gives, never on job, instance or the
// index of a GPU, so that they mean the same over the collector, over exporters
// and over two collectors at once.
//
// To add an alert: in the file of its topic, a firing and a quiet case in
// testdata/<topic>_test.yaml, docs/runbooks/<Alert>.md.
package alerts
