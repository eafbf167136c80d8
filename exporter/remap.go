package exporter

import (
	"errors"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var remapFields = []FieldID{FieldRemapCorrectable, FieldRemapUncorrectable, FieldRemapPending, FieldRemapFailed}

func readRemap(r *reading) error {
	return errors.Join(
		r.count(telemetry.GPURowRemapCorrectable, FieldRemapCorrectable, 1),
		r.count(telemetry.GPURowRemapUncorrectable, FieldRemapUncorrectable, 1),
		r.gauge(telemetry.GPURowRemapPending, FieldRemapPending),
		r.gauge(telemetry.GPURowRemapFailed, FieldRemapFailed))
}
