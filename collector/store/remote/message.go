package remote

import (
	"fmt"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/prometheus/prometheus/util/compression"
)

// sample is one sample of one series; its time is its round's. Of value, ints
// and floats one is set.
type sample struct {
	labels labels.Labels
	value  float64
	ints   *histogram.Histogram
	floats *histogram.FloatHistogram
}

// encode is the body of one request: samples of one time, snappy-compressed.
func encode(version2 bool, at int64, samples []sample) ([]byte, error) {
	var data []byte
	var err error
	if version2 {
		data, err = message2(at, samples).OptimizedMarshal(nil)
	} else {
		data, err = message1(at, samples).Marshal()
	}
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return compression.Encode(compression.Snappy, data, nil)
}

func message1(at int64, samples []sample) *prompb.WriteRequest {
	req := &prompb.WriteRequest{Timeseries: make([]prompb.TimeSeries, len(samples))}
	values := make([]prompb.Sample, len(samples))
	for i, s := range samples {
		ts := &req.Timeseries[i]
		ts.Labels = prompb.FromLabels(s.labels, nil)
		switch {
		case s.ints != nil:
			ts.Histograms = []prompb.Histogram{prompb.FromIntHistogram(at, s.ints)}
		case s.floats != nil:
			ts.Histograms = []prompb.Histogram{prompb.FromFloatHistogram(at, s.floats)}
		default:
			values[i] = prompb.Sample{Timestamp: at, Value: s.value}
			ts.Samples = values[i : i+1]
		}
	}
	return req
}

func message2(at int64, samples []sample) *writev2.Request {
	symbols := writev2.NewSymbolTable()
	req := &writev2.Request{Timeseries: make([]writev2.TimeSeries, len(samples))}
	values := make([]writev2.Sample, len(samples))
	for i, s := range samples {
		ts := &req.Timeseries[i]
		ts.LabelsRefs = symbols.SymbolizeLabels(s.labels, nil)
		switch {
		case s.ints != nil:
			ts.Histograms = []writev2.Histogram{writev2.FromIntHistogram(0, at, s.ints)}
		case s.floats != nil:
			ts.Histograms = []writev2.Histogram{writev2.FromFloatHistogram(0, at, s.floats)}
		default:
			values[i] = writev2.Sample{Timestamp: at, Value: s.value}
			ts.Samples = values[i : i+1]
		}
	}
	req.Symbols = symbols.Symbols()
	return req
}
