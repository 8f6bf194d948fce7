// Files that tests read as they are.

declare module '*?raw' {
  const text: string;
  export default text;
}
