package formats

import (
	"math"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// plainAvro returns a schema without the parts that no value depends on. Registries keep schemas that the
// parser refuses for such parts: a default of another type, or an alias that is also a field. The
// specification demands that a reader ignores a logical type that is not valid.
func plainAvro(schema string) string {
	var parsed any
	if json.Unmarshal([]byte(schema), &parsed, jsontext.AllowDuplicateNames(true)) != nil {
		return schema // the parser says why
	}
	plain, err := json.Marshal(plainAvroType(parsed))
	if err != nil {
		return schema
	}
	return string(plain)
}

// plainAvroType returns the plain form of a type: a name, an object, or the list of a union.
func plainAvroType(of any) any {
	switch of := of.(type) {
	case []any:
		branches := make([]any, len(of))
		for i := range of {
			branches[i] = plainAvroType(of[i])
		}
		return branches
	case map[string]any:
		switch of["type"].(type) {
		case map[string]any, []any:
			return plainAvroType(of["type"]) // a type within a type
		}
		return plainAvroObject(of)
	}
	return of
}

// plainAvroObject returns the plain form of a type that is an object, or of a field.
func plainAvroObject(of map[string]any) map[string]any {
	plain := map[string]any{}
	for name, value := range of {
		switch name {
		case "type", "items", "values":
			plain[name] = plainAvroType(value)
		case "fields":
			plain[name] = plainAvroFields(value)
		case "name", "size", "symbols":
			plain[name] = value
		case "namespace":
			if text, ok := value.(string); ok {
				plain[name] = text
			}
		case "logicalType":
			if value != "decimal" {
				plain[name] = value
			} else if scale, ok := decimalScale(of); ok {
				plain[name], plain["precision"], plain["scale"] = value, max(scale, 1), scale
			}
		}
	}
	return plain
}

func plainAvroFields(of any) any {
	list, ok := of.([]any)
	if !ok {
		return of
	}
	plain := make([]any, len(list))
	for i := range list {
		plain[i] = list[i]
		if field, ok := list[i].(map[string]any); ok {
			plain[i] = map[string]any{"name": field["name"], "type": plainAvroType(field["type"])}
		}
	}
	return plain
}

// decimalScale returns the scale of a decimal; false if its logical type is not valid.
func decimalScale(of map[string]any) (int, bool) {
	precision, ok := avroInteger(of["precision"])
	if !ok || precision < 1 {
		return 0, false
	}
	if of["type"] == "fixed" {
		size, _ := avroInteger(of["size"])
		if float64(precision) > math.Floor(math.Log10(2)*float64(8*size-1)) {
			return 0, false
		}
	}
	scale := 0
	if of["scale"] != nil {
		if scale, ok = avroInteger(of["scale"]); !ok {
			return 0, false
		}
	}
	return scale, scale >= 0 && scale <= min(precision, decimalScaleMax)
}

func avroInteger(of any) (int, bool) {
	number, ok := of.(float64)
	return int(number), ok && math.Abs(number) <= math.MaxInt32 && number == math.Trunc(number)
}
