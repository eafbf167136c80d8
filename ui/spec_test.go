package ui

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// spec is openapi.yaml as a tree, with what of its schemas was met.
type spec struct {
	tree map[string]any
	met  map[string]bool // "Schema.property" of named schemas
}

func readSpec(t *testing.T) *spec {
	t.Helper()
	s := &spec{met: map[string]bool{}}
	if err := yaml.Unmarshal(openapiYAML, &s.tree); err != nil {
		t.Fatalf("openapi.yaml: %v", err)
	}
	return s
}

func at(tree any, path ...string) any {
	for _, key := range path {
		m, ok := tree.(map[string]any)
		if !ok {
			return nil
		}
		tree = m[key]
	}
	return tree
}

// resolve follows a reference and names the schema it leads to.
func (s *spec) resolve(schema map[string]any) (map[string]any, string) {
	ref, ok := schema["$ref"].(string)
	if !ok {
		return schema, ""
	}
	parts := strings.Split(strings.TrimPrefix(ref, "#/"), "/")
	target, _ := at(s.tree, parts...).(map[string]any)
	if target == nil {
		return map[string]any{"unresolved": ref}, ref
	}
	return target, parts[len(parts)-1]
}

// property is a described field: its schema and who describes it.
type property struct {
	schema map[string]any
	owner  string
}

// properties merges an object's own properties with those of allOf.
func (s *spec) properties(schema map[string]any, name string) (props map[string]property, required []string) {
	props = map[string]property{}
	for _, part := range list(schema["allOf"]) {
		sub, subName := s.resolve(part.(map[string]any))
		if subName == "" {
			subName = name
		}
		p, r := s.properties(sub, subName)
		maps.Copy(props, p)
		required = append(required, r...)
	}
	own, _ := schema["properties"].(map[string]any)
	for key, p := range own {
		props[key] = property{p.(map[string]any), name}
	}
	for _, r := range list(schema["required"]) {
		required = append(required, r.(string))
	}
	return props, required
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// check compares a JSON value with a schema, every object closed: a field that
// is not described is an error. It notes the described fields that it met.
func (s *spec) check(where string, schema map[string]any, v any) []string {
	schema, name := s.resolve(schema)
	if ref, ok := schema["unresolved"]; ok {
		return []string{fmt.Sprintf("%s: %v does not exist", where, ref)}
	}
	if len(schema) == 1 && schema["description"] != nil {
		return nil // passed on from elsewhere
	}
	if bad := s.checkScalar(where, schema, v); bad != "" {
		return []string{bad}
	}
	switch v := v.(type) {
	case map[string]any:
		return s.checkObject(where, schema, name, v)
	case []any:
		var bad []string
		items, _ := schema["items"].(map[string]any)
		if items == nil {
			return []string{where + ": a list that is described without items"}
		}
		for i, item := range v {
			bad = append(bad, s.check(fmt.Sprintf("%s[%d]", where, i), items, item)...)
		}
		return bad
	}
	return nil
}

func (s *spec) checkObject(where string, schema map[string]any, name string, v map[string]any) (bad []string) {
	if extra, ok := schema["additionalProperties"].(map[string]any); ok {
		for key, item := range v {
			bad = append(bad, s.check(where+"."+key, extra, item)...)
		}
		return bad
	}
	props, required := s.properties(schema, name)
	for _, r := range required {
		if _, ok := v[r]; !ok {
			bad = append(bad, fmt.Sprintf("%s: required %q is absent", where, r))
		}
	}
	for key, item := range v {
		p, ok := props[key]
		if !ok {
			bad = append(bad, fmt.Sprintf("%s: field %q is not described", where, key))
			continue
		}
		s.met[p.owner+"."+key] = true
		bad = append(bad, s.check(where+"."+key, p.schema, item)...)
	}
	return bad
}

var durationText = regexp.MustCompile(`^(\d+(\.\d+)?(h|m|s|ms|µs|ns))+$`)

func (s *spec) checkScalar(where string, schema map[string]any, v any) string {
	types := list(schema["type"])
	if one, ok := schema["type"].(string); ok {
		types = []any{one}
	}
	if len(types) > 0 && !slices.ContainsFunc(types, func(t any) bool { return isType(t.(string), v) }) {
		return fmt.Sprintf("%s: %v is no %v", where, v, types)
	}
	if enum := list(schema["enum"]); enum != nil && !slices.Contains(enum, v) {
		return fmt.Sprintf("%s: %v is none of %v", where, v, enum)
	}
	if want, ok := schema["const"]; ok && want != v {
		return fmt.Sprintf("%s: %v is not %v", where, v, want)
	}
	text, _ := v.(string)
	switch schema["format"] {
	case "date-time":
		if _, err := time.Parse(time.RFC3339Nano, text); err != nil {
			return fmt.Sprintf("%s: %q is no time", where, text)
		}
	case "duration-text":
		if !durationText.MatchString(text) {
			return fmt.Sprintf("%s: %q is no duration", where, text)
		}
	}
	return ""
}

func isType(name string, v any) bool {
	switch v := v.(type) {
	case nil:
		return name == "null"
	case bool:
		return name == "boolean"
	case string:
		return name == "string"
	case float64:
		return name == "number" || name == "integer" && v == float64(int64(v))
	case []any:
		return name == "array"
	case map[string]any:
		return name == "object"
	}
	return false
}

// unmet lists the described fields of named schemas that no answer had.
func (s *spec) unmet() []string {
	var out []string
	schemas, _ := at(s.tree, "components", "schemas").(map[string]any)
	for name, schema := range schemas {
		props, _ := s.properties(schema.(map[string]any), name)
		for key, p := range props {
			if p.owner == name && !s.met[name+"."+key] {
				out = append(out, name+"."+key)
			}
		}
	}
	slices.Sort(out)
	return out
}

// fill sets every field of a value, so that its JSON has every key. Words that
// come from a closed list are taken from words by the field's name.
func fill(v reflect.Value, name string, words map[string]string) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), name, words)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1_800_000_000, 0).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), v.Type().Field(i).Name, words)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), name, words)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, name, words)
		fill(value, name, words)
		v.SetMapIndex(key, value)
	case reflect.String:
		word, ok := words[v.Type().Name()]
		if !ok {
			word, ok = words[name]
		}
		if !ok {
			word = "x"
		}
		v.SetString(word)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1e9)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(3)
	case reflect.Float64:
		v.SetFloat(0.5)
	}
}

// decode reads JSON into the forms that check takes.
func decode(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v in %.200s", err, data)
	}
	return v
}

func unmarshal(t *testing.T, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%v in %.200s", err, data)
	}
}

// decodeSome reads the id of an update whose rows travel as arrays.
func decodeSome(data []byte, id *string) error {
	return json.Unmarshal(data, &struct {
		ID *string `json:"id"`
	}{id})
}
