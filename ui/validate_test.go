package ui

import (
	"testing"

	"github.com/pb33f/libopenapi"
)

// TestSpecIsOpenAPI: another reader than ours takes openapi.yaml for OpenAPI
// 3.1, with every reference resolved and every operation named once.
func TestSpecIsOpenAPI(t *testing.T) {
	document, err := libopenapi.NewDocument(openapiYAML)
	if err != nil {
		t.Fatal(err)
	}
	if v := document.GetVersion(); v != "3.1.0" {
		t.Errorf("version %s", v)
	}
	model, err := document.BuildV3Model()
	if err != nil {
		t.Fatal(err)
	}
	names, paths := map[string]string{}, 0
	for path, item := range model.Model.Paths.PathItems.FromOldest() {
		paths++
		for method, op := range item.GetOperations().FromOldest() {
			where := method + " " + path
			if op.OperationId == "" || op.Summary == "" || names[op.OperationId] != "" {
				t.Errorf("%s: operation %q (%q), also of %q", where, op.OperationId, op.Summary, names[op.OperationId])
			}
			names[op.OperationId] = where
			if op.Responses.Default == nil || op.Responses.Codes.GetOrZero("200") == nil {
				t.Errorf("%s: a response 200 and one for errors are wanted", where)
			}
			for _, p := range op.Parameters {
				if p.Schema == nil || p.In == "" || p.Name == "" {
					t.Errorf("%s: parameter %q is half described", where, p.Name)
				}
			}
		}
	}
	if want := len((&server{}).routes()) - 1; paths != want { // one path has two methods
		t.Errorf("%d paths, %d are served", paths, want)
	}
	for name, proxy := range model.Model.Components.Schemas.FromOldest() {
		if schema, err := proxy.BuildSchema(); err != nil || schema == nil {
			t.Errorf("schema %s: %v", name, err)
		}
	}
	if index := model.Index; index != nil {
		for _, err := range index.GetReferenceIndexErrors() {
			t.Error(err)
		}
		if circles := index.GetCircularReferences(); len(circles) > 0 {
			t.Errorf("circles: %v", circles)
		}
	}
}
