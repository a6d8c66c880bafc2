package winch

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// Schema is a JSON Schema.
type Schema map[string]any

const mostDepth = 12

// SchemaOf is the JSON Schema of a type, as encoding/json writes its values: fields have the names of their
// json tags, those without omitempty are required, and a pointer may be null. What a type decides itself
// (json.Marshaler), an interface, or a type that holds itself, may be anything.
func SchemaOf[T any]() Schema {
	return schemaOf(reflect.TypeOf((*T)(nil)).Elem(), nil)
}

var (
	timeType      = reflect.TypeOf(time.Time{})
	marshalerType = reflect.TypeOf((*json.Marshaler)(nil)).Elem()
)

func schemaOf(kind reflect.Type, inside []reflect.Type) Schema {
	for _, outer := range inside {
		if outer == kind {
			return Schema{}
		}
	}
	if kind == timeType {
		return Schema{"type": "string", "format": "date-time"}
	}
	if len(inside) >= mostDepth || kind.Implements(marshalerType) ||
		reflect.PointerTo(kind).Implements(marshalerType) {
		return Schema{}
	}
	inside = append(inside[:len(inside):len(inside)], kind)
	switch kind.Kind() {
	case reflect.Bool:
		return Schema{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return Schema{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return Schema{"type": "integer", "minimum": 0}
	case reflect.Float32, reflect.Float64:
		return Schema{"type": "number"}
	case reflect.String:
		return Schema{"type": "string"}
	case reflect.Pointer:
		return orNull(schemaOf(kind.Elem(), inside))
	case reflect.Slice:
		if kind.Elem().Kind() == reflect.Uint8 {
			return orNull(Schema{"type": "string"}) // base64
		}
		return orNull(Schema{"type": "array", "items": schemaOf(kind.Elem(), inside)})
	case reflect.Array:
		return Schema{"type": "array", "items": schemaOf(kind.Elem(), inside)}
	case reflect.Map:
		return orNull(Schema{"type": "object", "additionalProperties": schemaOf(kind.Elem(), inside)})
	case reflect.Struct:
		return ofStruct(kind, inside)
	}
	return Schema{}
}

func orNull(schema Schema) Schema {
	if name, ok := schema["type"].(string); ok {
		schema["type"] = []string{name, "null"}
	}
	return schema
}

func ofStruct(kind reflect.Type, inside []reflect.Type) Schema {
	properties, required := map[string]any{}, []string{}
	for _, field := range reflect.VisibleFields(kind) {
		tag, _ := field.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		if !field.IsExported() || tag == "-" || field.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = field.Name
		}
		if strings.Contains(options, "string") {
			properties[name] = Schema{}
		} else {
			properties[name] = schemaOf(field.Type, inside)
		}
		if !strings.Contains(options, "omitempty") {
			required = append(required, name)
		}
	}
	schema := Schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		schema["required"] = required
	}
	return schema
}
