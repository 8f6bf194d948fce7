// Files that tests read as they are.

declare module '*?raw' {
  const text: string;
  export default text;
}

// The defaults of the keys.
declare module '*/plugin.json' {
  const schema: {
    'jupyter.lab.shortcuts': { command: string; keys: string[]; selector: string }[];
  };
  export default schema;
}
