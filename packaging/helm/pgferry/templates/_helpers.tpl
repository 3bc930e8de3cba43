{{- define "pgferry.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "pgferry.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "pgferry.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "pgferry.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "pgferry.selector" -}}
app.kubernetes.io/name: {{ include "pgferry.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pgferry.labels" -}}
{{ include "pgferry.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "pgferry.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "pgferry.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "pgferry.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "pgferry.secret" -}}
{{- default (include "pgferry.fullname" .) .Values.existingSecret }}
{{- end }}

{{/* Whole numbers stay whole: Helm reads them as floats and would write 1e+06. Booleans are 0 and 1. */}}
{{- define "pgferry.value" -}}
{{- if kindIs "float64" . }}
{{- if eq (float64 (int64 .)) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else if kindIs "bool" . }}
{{- ternary "1" "0" . }}
{{- else }}
{{- . }}
{{- end }}
{{- end }}

{{/* What the chart itself needs, under what the values say. */}}
{{- define "pgferry.settings" -}}
{{- $ours := dict "listen_addr" "0.0.0.0" "listen_port" "6432" "http_listen" "0.0.0.0:9127" "unix_socket_dir" "/tmp" "shutdown_mode" "drain" "drain_timeout" (toString .Values.drainTimeout) }}
{{- if .Values.databases }}
{{- $_ := set $ours "auth_file" "/etc/pgferry-users/userlist.txt" }}
{{- end }}
{{- range $name, $value := merge (deepCopy .Values.settings) $ours }}
{{ $name }}: {{ include "pgferry.value" $value | quote }}
{{- end }}
{{- end }}
