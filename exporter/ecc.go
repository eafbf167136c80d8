package exporter

import (
	"errors"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var eccFields = []FieldID{FieldECCCorrectedVolatile, FieldECCUncorrectedVolatile, FieldECCCorrectedAggregate, FieldECCUncorrectedAggregate}

func readECC(r *reading) error {
	return errors.Join(
		r.count(telemetry.GPUECCErrorsCorrectedVolatile, FieldECCCorrectedVolatile, 1),
		r.count(telemetry.GPUECCErrorsUncorrectedVolatile, FieldECCUncorrectedVolatile, 1),
		r.count(telemetry.GPUECCErrorsCorrectedAggregate, FieldECCCorrectedAggregate, 1),
		r.count(telemetry.GPUECCErrorsUncorrectedAggregate, FieldECCUncorrectedAggregate, 1))
}
